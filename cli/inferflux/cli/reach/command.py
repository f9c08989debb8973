"""Helpers that commands share: targets and output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console, RenderableType

from .client import Client
from .state_dir import StateDir, default_path
from .target import Target, resolve

# Programs that read a table line by line get each row in one.
_PIPE_WIDTH = 10_000

Endpoint = Annotated[
    str,
    typer.Option("--endpoint", help="Gateway, host:port. Else $INFERFLUX_ENDPOINT, else the local stack."),
]
ApiKey = Annotated[
    str,
    typer.Option(
        "--api-key",
        help="Others on this machine see a command line: better $INFERFLUX_API_KEY. Else the local stack's.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StateDirectory = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        metavar="PATH",
        parser=lambda text: Path(text) if text else None,
        help="Keys, data and logs. Else $INFERFLUX_STATE_DIR, else below home.",
    ),
]

# --tls-ca, which stands before the command.
tls_ca_flag: ContextVar[str] = ContextVar("tls_ca_flag", default="")

# What people see of an answer: a line, or what rich prints.
View = str | Callable[[Any], RenderableType]


def with_client(
    run: Callable[[Client], Awaitable[None]], endpoint: str, api_key: str, state_dir: Path | None
) -> None:
    """Run a command's body with a connection to the gateway that is meant."""
    local = StateDir(state_path(state_dir)).running
    target = resolve(
        endpoint=endpoint, api_key=api_key, env=os.environ, local=local, tls_ca=tls_ca_flag.get()
    )

    async def main(target: Target) -> None:
        async with Client(target) as client:
            await run(client)

    run_until_ctrl_c(main(target))


@dataclass(frozen=True, slots=True)
class Call:
    """Flags of a command that calls a gateway and prints what it answers."""

    as_json: AsJson = False
    endpoint: Endpoint = ""
    api_key: ApiKey = ""
    state_dir: StateDirectory = None

    def run(self, body: Callable[[Client], Awaitable[None]]) -> None:
        """Run a command's body with a connection to the gateway that is meant."""
        with_client(body, self.endpoint, self.api_key, self.state_dir)

    def show(self, answer: Message, view: View) -> None:
        """Print an answer."""
        if self.as_json:
            print_json(answer)
        elif isinstance(view, str):
            sys.stdout.write(f"{view}\n")
        else:
            make_console().print(view(answer))

    def policy(self, method: str, request: Message, view: View) -> None:
        """Call a method of PolicyService, and print what it answers: of a list, all pages."""

        async def run(client: Client) -> None:
            ask = client.whole_list if method.startswith("List") else client.policy
            self.show(await ask(method, request), view)

        self.run(run)


def run_until_ctrl_c(work: Coroutine[None, None, None]) -> None:
    """asyncio.run, for which Ctrl-C is an event of the loop: asyncio.run's own handler may run only when the
    loop wakes for another reason.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; `work` was cancelled.
    """
    was_pressed = False

    async def main() -> None:
        task = asyncio.ensure_future(work)

        def cancel() -> None:
            nonlocal was_pressed
            was_pressed = True
            task.cancel()

        with on_ctrl_c(cancel):
            await task

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(main())
    if was_pressed:
        raise KeyboardInterrupt


@contextlib.contextmanager
def on_ctrl_c(act: Callable[[], object]) -> Iterator[None]:
    """Have the running loop do `act` when Ctrl-C is pressed."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def make_console() -> Console:
    """Console as wide as the terminal; a pipe has room for every column."""
    is_terminal = sys.stdout.isatty()
    return Console(highlight=False, width=None if is_terminal else _PIPE_WIDTH)


def state_path(given: Path | None) -> Path:
    return given.expanduser().absolute() if given else default_path(os.environ)


def as_dict(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def print_json(message: Message) -> None:
    sys.stdout.write(json.dumps(as_dict(message), indent=2) + "\n")
