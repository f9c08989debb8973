"""The commands of inferctl and their flags."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.live import Live
from typer.completion import show_callback

from .admin import admin
from .ask.answer import Answer
from .ask.chat import ChatSession, one_shot
from .ask.devices import devices, plan, rpc_server
from .ask.embed import embed, rerank
from .ask.flags import GenerationFlags
from .ask.models import models
from .ask.store import pull
from .ask.stream import show
from .ask.tools import tools_of
from .convert import convert
from .doctor.command import doctor
from .reach.bounds import UINT32, read_stdin
from .reach.client import Client
from .reach.command import (
    ApiKey,
    AsJson,
    Call,
    Endpoint,
    StateDirectory,
    make_console,
    print_json,
    state_path,
    tls_ca_flag,
    with_client,
)
from .reach.flag_groups import Commands
from .show.cache_tables import cache_view
from .show.status_tables import status_view
from .up_flags import UpCommand, UpFlags

_WATCH_INTERVAL_S = 1.0
# Of workers, and of hosts: what `status` shows without --all.
_ROWS = 50

app = Commands(
    name="inferctl",
    help="Run InferFlux on this machine, and talk to it here or elsewhere.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Groups of the help, in the order in which a newcomer needs them.
_PANELS = _START, _ASK, _MODELS, _OPERATE, _ABOUT = "Start", "Ask", "Models", "Operate", "About inferctl"


def _print_version(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


@app.callback()
def _of_every_command(
    tls_ca: Annotated[
        str,
        typer.Option(
            "--tls-ca",
            metavar="FILE",
            help="Speak TLS: the CA of the gateway, PEM, or `public`. "
            "Else the local stack's, or $INFERFLUX_TLS_CA.",
        ),
    ] = "",
    _version: Annotated[
        bool,
        typer.Option("--version", "-V", is_eager=True, callback=_print_version, help="Print the version."),
    ] = False,
) -> None:
    """Run InferFlux on this machine, and talk to it here or elsewhere."""
    tls_ca_flag.set(tls_ca)


ModelName = Annotated[str, typer.Option("--model", "-m", help="Else the first one served.")]
RequestId = Annotated[
    str, typer.Option(help="Your own id, for `inferctl cancel` and `resume`: 1-64 of A-Z a-z 0-9 _ -")
]
Stats = Annotated[bool, typer.Option("--stats", help="Say how fast the answer came.")]
ModelPath = Annotated[
    Path | None, typer.Option("--model", "-m", help="GGUF file; the demo model by default.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print what every process logs.")]


@app.command(cls=UpCommand, rich_help_panel=_START)
def up(*, flags: UpFlags, verbose: Verbose = False) -> None:
    """Serve a model on this machine until Ctrl-C."""
    from .stack.foreground import in_foreground
    from .up import serve

    raise typer.Exit(asyncio.run(in_foreground(flags.options(), serve, is_verbose=verbose)))


@app.command(rich_help_panel=_START)
def demo(model: ModelPath = None, verbose: Verbose = False) -> None:
    """Start a stack aside, stream one answer, say how fast it was, end it."""
    from .stack import StackOptions
    from .stack.foreground import in_foreground
    from .up import show_answer

    options = StackOptions(model=model)
    raise typer.Exit(asyncio.run(in_foreground(options, show_answer, is_verbose=verbose, says_end=False)))


@app.command(rich_help_panel=_OPERATE)
def status(
    endpoint: Endpoint = "",
    api_key: ApiKey = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it until Ctrl-C.")] = False,
    cache: Annotated[bool, typer.Option("--cache", help="What workers have cached of prompts.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="All workers and hosts: without it, and --json, the first 50.")
    ] = False,
    as_json: AsJson = False,
    state_dir: StateDirectory = None,
) -> None:
    """Show services, workers, slots and the queue."""
    view = cache_view if cache else status_view
    is_whole = everything or as_json

    async def run(client: Client) -> None:
        console = make_console()
        if not watch:
            now = await (client.whole_status() if is_whole else client.status(_ROWS))
            print_json(now) if as_json else console.print(view(now))
            return
        with Live(console=console, auto_refresh=False, screen=console.is_terminal and not as_json) as live:
            while True:
                now = await (client.whole_status() if is_whole else client.status(_ROWS))
                print_json(now) if as_json else live.update(view(now), refresh=True)
                await asyncio.sleep(_WATCH_INTERVAL_S)

    with_client(run, endpoint, api_key, state_dir)


@app.command(rich_help_panel=_ASK)
def chat(
    text: Annotated[
        str | None, typer.Argument(help="The question; - reads it from stdin. Without one: a conversation.")
    ] = None,
    *,
    model: ModelName = "",
    system: Annotated[str, typer.Option(help="The system message.")] = "",
    flags: GenerationFlags,
    tools: Annotated[
        Path | None,
        typer.Option(
            "--tools",
            metavar="FILE",
            help="A JSON list of functions that the model may call. Calls are shown; nothing is run.",
        ),
    ] = None,
    request_id: RequestId = "",
    stats: Stats = False,
    call: Call,
) -> None:
    """Ask the model; the answer streams as it is generated."""
    generation = replace(flags.generation(), tools=tools_of(tools))
    question = _text_or_stdin(text)
    if question is not None and not question.strip():
        raise typer.BadParameter("the question is empty")

    async def run(client: Client) -> None:
        if question is None:
            history = state_path(call.state_dir) / "chat_history"
            session = ChatSession(
                client, model=model, system=system, generation=generation, has_stats=stats, history=history
            )
            await session.run()
            return
        await one_shot(
            client,
            question,
            model=model,
            system=system,
            generation=generation,
            request_id=request_id,
            has_stats=stats,
            is_json=call.as_json,
        )

    call.run(run)


@app.command(rich_help_panel=_ASK)
def complete(
    text: Annotated[
        str | None, typer.Argument(help="What to continue; - or none reads it from stdin.")
    ] = None,
    *,
    model: ModelName = "",
    flags: GenerationFlags,
    request_id: RequestId = "",
    stats: Stats = False,
    call: Call,
) -> None:
    """Continue a text, without a chat template."""
    generation = flags.generation()
    prompt = _text_or_stdin(text)
    if prompt is None:
        raise typer.BadParameter("give a text, or pipe one in")

    async def run(client: Client) -> None:
        name = model or await client.only_model()
        answer = Answer(
            sent_at=asyncio.get_running_loop().time(),
            request_id=request_id,
            asks_for_drafts=generation.asks_for_drafts,
            max_tokens=generation.max_tokens or 0,
        )
        chunks = client.generate(
            prompt,
            model=name,
            params=generation.params(),
            priority=generation.priority,
            request_id=request_id,
            resume_window_s=generation.resume_window_s,
            skip_answer_cache=generation.skips_answer_cache,
            on_resumed=answer.on_resumed,
        )
        await show(chunks, answer, has_stats=stats, is_json=call.as_json)

    call.run(run)


@app.command(rich_help_panel=_ASK)
def resume(
    request_id: Annotated[str, typer.Argument(help="As `--stats` and `--json` show it.")],
    offset: Annotated[
        int, typer.Option(min=0, max=UINT32, metavar="TOKENS", help="Leave out this many tokens.")
    ] = 0,
    stats: Stats = False,
    *,
    call: Call,
) -> None:
    """Stream the answer of a running or just finished request."""

    async def run(client: Client) -> None:
        answer = Answer(sent_at=asyncio.get_running_loop().time(), request_id=request_id)
        chunks = client.resume(request_id, offset=offset, on_delta=answer.on_delta)
        await show(chunks, answer, has_stats=stats, is_json=call.as_json)

    call.run(run)


@app.command(rich_help_panel=_ASK)
def cancel(
    request_id: Annotated[str, typer.Argument(help="As `--stats` and `--json` show it.")],
    endpoint: Endpoint = "",
    api_key: ApiKey = "",
    state_dir: StateDirectory = None,
) -> None:
    """End a queued or running request."""

    async def run(client: Client) -> None:
        await client.cancel(request_id)
        sys.stdout.write(f"cancelled {request_id}\n")

    with_client(run, endpoint, api_key, state_dir)


@app.command(rich_help_panel=_ABOUT)
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"inferctl {installed_version('inferflux-cli')}\n")


@app.command(rich_help_panel=_ABOUT)
def completion(
    context: typer.Context,
    shell: Annotated[
        Literal["bash", "zsh", "fish", "powershell"],
        typer.Argument(help="`source <(inferctl completion bash)` has it for this shell alone."),
    ] = "bash",
) -> None:
    """Print a script that completes inferctl's commands and options in a shell."""
    show_callback(context.find_root(), context.command.params[0], shell)


app.command(rich_help_panel=_ASK)(embed)
app.command(rich_help_panel=_ASK)(rerank)
app.add_typer(models, name="models", rich_help_panel=_MODELS)
app.command(rich_help_panel=_MODELS)(pull)
models.command()(plan)
models.command()(convert)
app.add_typer(admin, name="admin", rich_help_panel=_OPERATE)
app.command(rich_help_panel=_OPERATE)(devices)
app.command(rich_help_panel=_OPERATE)(doctor)
app.command("rpc-server", rich_help_panel=_OPERATE)(rpc_server)
# The help shows groups in the order of their first command.
app.registered_commands.sort(key=lambda one: _PANELS.index(str(one.rich_help_panel)))


def _text_or_stdin(text: str | None) -> str | None:
    """The argument, or what is piped in; None at a terminal without either."""
    if text is not None and text != "-":
        return text
    if text is None and sys.stdin.isatty():
        return None
    return read_stdin()
