"""`inferctl up` and `inferctl demo`: a stack in the foreground, until Ctrl-C or for one answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError

from .ask.answer import Answer
from .ask.generation import Generation, user_message
from .ask.stream import stream_text
from .model_files.choosing import DEMO, Chosen, choose
from .model_files.named import SMOLLM2
from .reach.client import Client
from .reach.errors import CommandError
from .reach.state_dir import StateDir, home_path
from .show.model_tables import paths_without
from .stack import Stack
from .stack.follow import LogTail
from .stack.ignored import ignored_variables
from .stack.options import DEMO_MODEL, ENGINE, NULL_WORKERS

_TLS = "the CA: INFERFLUX_TLS_CA; beside it client.pem and client.key, which NATS asks for"

_DEMO_QUESTION = "Tell me a short story about a fox."
_DEMO_GENERATION = Generation(max_tokens=200, temperature=0.0)


async def serve(stack: Stack, console: Console) -> None:
    """Say where it is, and go on until cancelled."""
    lines = [*warnings(stack), *await _without(stack), *welcome(stack, _program())]
    console.print("\n".join(lines), soft_wrap=True)
    await asyncio.Event().wait()


async def show_answer(stack: Stack, console: Console) -> None:
    """Ask one question; print the answer as it comes, and how fast it came."""
    console.print(f"\n[bold cyan]>[/] {_DEMO_QUESTION}")
    answer = Answer(sent_at=time.monotonic())
    async with Client(stack.target) as client:
        messages, params = [user_message(_DEMO_QUESTION)], _DEMO_GENERATION.params()
        await stream_text(client.chat(messages, model=stack.model_name, params=params), answer)
    rate = f"{answer.tokens_per_s:.0f} tokens/s" if answer.tokens_per_s else "one message"
    ttft = f"{answer.ttft_s * 1000:.0f} ms" if answer.ttft_s is not None else "none came"
    console.print(
        f"\n[dim]time to first token[/] {ttft}  [dim]then[/] {rate}  [dim]for[/] {answer.tokens} tokens"
    )


def chosen_model(wanted: str, state_dir: Path, *, needs_answers: bool) -> Chosen:
    """The model to serve; where none is named SmolLM2, or the demo model for workers that only imitate one.

    Raises:
        CommandError: there is none such, or a stack runs already that it would be got for.
    """
    if StateDir(state_dir).running() is None:
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        return choose(wanted or (SMOLLM2.name if needs_answers else DEMO), state_dir, console)
    with StateDir(state_dir).locked():
        raise CommandError("a stack has ended just now: try again")


def warnings(stack: Stack) -> list[str]:
    """Lines of rich markup: variables that the stack's services ignored."""
    logs = (LogTail(process.log_file).new_lines() for process in stack.processes.values())
    return [
        f"[yellow]{escape(variable)} is ignored: is it meant to be {escape(nearest)}?[/]"
        for variable, nearest in ignored_variables(chain.from_iterable(logs)).items()
    ]


async def _without(stack: Stack) -> list[str]:
    """Lines of rich markup: what the models' engines found not to work, and do without."""
    with contextlib.suppress(InferFluxError):  # then `status` says it
        async with Client(stack.target) as client:
            cards = [model.card for model in await client.models()]
        return [
            f"[yellow]{escape(card.name)} without {why}[/]" for card in cards for why in paths_without(card)
        ]
    return []


def welcome(stack: Stack, program: str) -> list[str]:
    """Lines of rich markup: where the stack is, and what to try with `program`."""
    facts = {
        "endpoint": f"{','.join(stack.endpoints)}  (gRPC)",
        "HTTP": f"{', '.join(stack.http_urls)}  (OpenAI's, Anthropic's, Ollama's API; a page to try it)",
        "API key": stack.api_key,
        "model": stack.model_name,
        **({"workers": stack.role_words} if stack.role_words else {}),
        "tokens": f"{stack.tokens_url}  (NATS)",
        **({"TLS": f"{_short(Path(stack.tls.ca))}  ({_TLS})"} if stack.tls.is_on else {}),
        "logs": _short(stack.state_dir.path / "logs"),
    }
    where = state_dir_flag(stack.state_dir.path, os.environ)
    tries = [
        f'{program} chat{where} "{question_for(stack.model_name)}"',
        f"{program} chat{where}",
        f"{program} status{where} --watch",
    ]
    return [
        "",
        *(f"  [dim]{name:<9}[/] {escape(value)}" for name, value in facts.items()),
        "",
        "Three things to try, in another terminal:",
        *(f"  [bold]{escape(line)}[/]" for line in tries),
        "",
        "[dim]Ctrl-C ends it.[/]",
    ]


def question_for(model: str) -> str:
    """One that it answers well: the demo model knows little, SmolLM2 gives advice better than facts."""
    is_demo = model.startswith(DEMO_MODEL.stem)
    return "What is the capital of France?" if is_demo else "Give me three tips for a good night's sleep."


def zones_of(text: str) -> tuple[str, ...]:
    """The zones of a flag.

    Raises:
        typer.BadParameter: one cannot be the name of a zone.
    """
    zones = tuple(name.strip() for name in text.split(",")) if text else ()
    for name in zones:
        if not subjects.is_safe_token(name):
            message = f"{name!r} is no name of a zone: 1-64 of A-Z a-z 0-9 _ -, and a comma between two"
            raise typer.BadParameter(message, param_hint="--zones")
    return zones


def null_workers_of(env: Mapping[str, str]) -> int:
    """Number of workers without a model in each worker process, from the environment; 0 where it asks for
    none, or for what the process itself refuses.
    """
    count = env.get(NULL_WORKERS) or "1"
    return int(count) if env.get(ENGINE) == "null" and count.isascii() and count.isdecimal() else 0


def state_dir_flag(path: Path, env: Mapping[str, str]) -> str:
    """Flag by which a command in another terminal finds a stack's state; "" for the default."""
    return "" if path == home_path(env) else f" --state-dir {shlex.quote(str(path))}"


def _program() -> str:
    """Command that calls inferctl from this directory."""
    own = Path(sys.argv[0]).absolute()
    found = shutil.which("inferctl")
    if found is not None and Path(found).absolute() == own:
        return "inferctl"
    return _short(own)


def _short(path: Path) -> str:
    """Relative to here, or to the home directory, where it is below one of them."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    with contextlib.suppress(ValueError, RuntimeError):
        return f"~/{path.relative_to(Path.home())}"
    return str(path)
