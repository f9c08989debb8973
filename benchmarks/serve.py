"""Put a running server under load and say how fast it answered.

    python -m benchmarks.serve --url 127.0.0.1:50051 --model inferflux-demo --concurrency 8 --requests 64

Prompts are random token ids, another one for each request, or random words with --prompt-characters. Answers
are greedy unless a temperature is given. They ignore the model's own end, so that every request generates
exactly --max-tokens tokens, or as many as --answer-tokens draws for it. Without --rate there are always
--concurrency requests on the way; with it, requests come at random moments, that many a second.
Exit code 1 if any request failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.load import target
from benchmarks.load.command_line import make_parser, positive, write_json
from benchmarks.load.http_stream import ProtocolError
from benchmarks.load.loops import Send, Target, closed_loop, open_loop, sender
from benchmarks.load.prompts import LogNormal, Prompts, PromptSource, TextPrompts
from benchmarks.load.trace import Objective, Trace, totals
from benchmarks.rows.show import result_table

_UPDATES_PER_S = 2
# Requests of the warm-up are numbered from here, so that no measured prompt is sent twice.
_WARMUP_FROM = 1_000_000_000
# Random numbers of their own for each length, so that long prompts do not come with long answers.
_PROMPT_LENGTHS, _ANSWER_LENGTHS = 1, 2
# A seed is smaller than that, so no take of one seed is a take of another.
_TAKE_BITS = 32


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    target.add_options(parser)
    parser.add_argument("--concurrency", type=positive, default=8, help="requests at a time")
    parser.add_argument("--requests", type=positive, default=64)
    parser.add_argument("--prompt-tokens", type=positive, default=128)
    parser.add_argument("--max-tokens", type=positive, default=64)
    parser.add_argument(
        "--prompt-characters",
        type=_log_normal_span,
        metavar="LOW:HIGH",
        help="prompts of words, of this many characters (log-normal), instead of --prompt-tokens",
    )
    parser.add_argument(
        "--answer-tokens",
        type=_log_normal_span,
        metavar="LOW:HIGH",
        help="answers of this many tokens (log-normal), instead of --max-tokens",
    )
    parser.add_argument(
        "--objective",
        type=_objective,
        metavar="TTFT_MS:GAP_MS",
        help="also tell the goodput: requests whose first token and mean gap keep these limits",
    )
    parser.add_argument("--rate", type=float, help="requests per second, at random moments (open loop)")
    parser.add_argument("--warmup", type=int, default=0, help="requests sent before, not measured")
    parser.add_argument(
        "--take",
        type=positive,
        default=0,
        help="other prompts, of the same lengths at the same moments: a server caches those it has had",
    )
    options = parser.parse_args(arguments)
    if options.rate is not None and options.rate <= 0:
        parser.error("--rate must be above 0")
    return options


async def measure(options: argparse.Namespace, *, is_bar_shown: bool) -> dict[str, Any]:
    """Run the load; returns the figures beside what they were measured with."""
    server = target.open_target(options)
    try:
        prompts = await _prompts(options, server)
        send = sender(server, prompts, max_tokens=_answers(options), limit_s=options.limit_s)
        if options.warmup:
            numbers = range(_WARMUP_FROM, _WARMUP_FROM + options.warmup)
            await closed_loop(send, requests=numbers, concurrency=options.concurrency, on_done=lambda: None)
        cpu_s = time.process_time()
        with _bar(options.requests, is_shown=is_bar_shown) as on_done:
            traces = await _run(options, send, on_done)
        cpu_s = time.process_time() - cpu_s
    finally:
        await server.close()
    return {**_asked(options), **totals(traces, options.objective), "client_cpu_s": round(cpu_s, 4)}


async def _prompts(options: argparse.Namespace, server: Target) -> PromptSource:
    seed = options.seed + (options.take << _TAKE_BITS)
    if options.prompt_characters is None:
        return Prompts(options.prompt_tokens, await target.token_range(options, server), seed)
    low, high = options.prompt_characters
    return TextPrompts(LogNormal(low, high, (options.seed, _PROMPT_LENGTHS)), seed)


def _answers(options: argparse.Namespace) -> int | LogNormal:
    if options.answer_tokens is None:
        return int(options.max_tokens)
    low, high = options.answer_tokens
    return LogNormal(low, high, (options.seed, _ANSWER_LENGTHS))


async def _run(options: argparse.Namespace, send: Send, on_done: Callable[[], None]) -> list[Trace]:
    numbers = range(options.requests)
    if options.rate is None:
        return await closed_loop(send, requests=numbers, concurrency=options.concurrency, on_done=on_done)
    return await open_loop(send, requests=numbers, rate=options.rate, seed=options.seed, on_done=on_done)


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    where = ("target", "url", "model", "pin")
    load = (
        "concurrency",
        "rate",
        "prompt_tokens",
        "prompt_characters",
        "max_tokens",
        "answer_tokens",
        "seed",
        "take",
    )
    how = ("temperature", "top_k", "top_p")
    return {name: getattr(options, name) for name in (*where, *load, *how)}


def _log_normal_span(text: str) -> tuple[int, int]:
    low, high = target.span(text)
    if low < 1:
        raise argparse.ArgumentTypeError("must be LOW:HIGH with LOW of at least 1")
    return low, high


def _objective(text: str) -> Objective:
    try:
        ttft_ms, gap_ms = (float(number) for number in text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError("must be TTFT_MS:GAP_MS") from None
    if not (ttft_ms > 0 and gap_ms > 0):
        raise argparse.ArgumentTypeError("must be two times above 0")
    return Objective(ttft_ms / 1000, gap_ms / 1000)


@contextmanager
def _bar(total: int, *, is_shown: bool) -> Iterator[Callable[[], None]]:
    """A progress bar that costs next to nothing: the client may share its cores with the server."""
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, refresh_per_second=_UPDATES_PER_S, disable=not is_shown) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse(arguments)
    console = Console(stderr=True)
    if options.pin is not None:
        os.sched_setaffinity(0, {options.pin})
    try:
        result = uvloop.run(measure(options, is_bar_shown=console.is_terminal))
    except grpc.aio.AioRpcError as error:
        console.print(f"{options.url}: {error.code().name}: {error.details()}", style="red", markup=False)
        return 1
    except (OSError, ProtocolError) as error:
        console.print(f"{options.url}: {error}", style="red", markup=False)
        return 1
    Console().print(result_table(result))
    for message, count in result["errors"].items():
        console.print(f"{count} failed: {message}", style="red", markup=False)
    write_json(options, result)
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
