"""Move KV state between two workers of one machine, and see what that takes.

    python -m benchmarks.moves                            # SmolLM2, every part
    python -m benchmarks.moves --parts transfer gap --model models/inferflux-demo.gguf --times 5

`transfer`: the state of 1,000 tokens, from asking for it until it is in the other KV cache: of a cached
prefix whose worker is idle, and of a stream that decodes. It comes through shared memory, and by TCP on
loopback; beside that stands a plain copy of as many bytes.
`gap`: a stream is moved back and forth as it decodes, 200 and 4,000 tokens long. Its longest gap at a move
stands beside the usual time between its tokens.
`split`: the time from the first token to the second, beside another stream, of prompts that one worker
computes and another goes on with, and of two workers that do all.
`beside`: eight streams decode while prompts of 4,000 tokens come, one after the other: the 99th percentile
between the streams' tokens, and all tokens a second, with a worker for prompts and one for answers, and with
two that do all.
`same`: answers that are moved once, beside those to the same prompts that are asked again and not moved: how
many differ from the first time. Greedy and seeded in turn; nothing is cached at the start of any.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.load.command_line import add_json, make_parser, positive
from benchmarks.load.stats import gaps, median, percentile
from benchmarks.rows.lab import LabError
from benchmarks.rows.measured import measured
from benchmarks.scheduling.ground import Ground, Load, ground, until
from benchmarks.scheduling.streams import Stream, Underway, hang_up
from inferflux.cli.stack import StackOptions
from inferflux.v1 import admin_pb2, inference_pb2, scheduler_pb2

PARTS = ("transfer", "gap", "split", "beside", "same")
_SMOLLM2 = Path.home() / ".cache/inferflux/models/smollm2/smollm2.gguf"
_WORKERS = ("worker-0", "worker-1")
_ROLES = ("prefill", "decode")
_CARRIERS = ("shm", "tcp")
_TRANSFERRED = 1000
_LENGTHS = (200, 4000)
_SPLIT_PROMPT, _SPLIT_ANSWER = 1000, 8
_STREAMS, _LONG_PROMPT = 8, 4000
_SAME_PROMPT, _SAME_ANSWER = 200, 120
_ANSWER = 3000
# Tokens of a stream before it is moved, and after.
_SETTLE_TOKENS = 8
_LIMIT_S = 300.0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, default=_SMOLLM2, help="default: SmolLM2")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--times", type=positive, default=10, metavar="N", help="moves, or prompts, of each")
    parser.add_argument("--prompts", type=positive, default=500, metavar="N", help="of `same`")
    parser.add_argument("--seconds", type=positive, default=30, metavar="N", help="of `beside`, each side")
    add_json(parser)
    return parser.parse_args(arguments)


def _stack(
    options: argparse.Namespace, env: Mapping[str, str], *, roles: bool = False, slots: int = 16
) -> StackOptions:
    names = zip(_WORKERS, _ROLES, strict=True)
    return StackOptions(
        model=options.model.resolve(),
        workers=2,
        threads=1,
        slots=slots,
        kv_cells=65536,
        restarts=False,
        env=env,
        service_env={name: {"INFERFLUX_ROLE": role} for name, role in names} if roles else {},
    )


async def _begun(on: Ground, request_id: str, prompt_tokens: int) -> Underway:
    """A stream that decodes.

    Raises:
        LabError: it does not.
    """
    request = on.request(prompt_tokens=prompt_tokens, max_tokens=_ANSWER)
    underway = on.caller.send(request, request_id=request_id)
    await until(
        lambda: underway.stream.tokens >= _SETTLE_TOKENS or underway.stream.ended_s > 0, patience_s=_LIMIT_S
    )
    _check([underway.stream])
    return underway


async def _moved(on: Ground, underway: Underway, request_id: str) -> float:
    """Move a stream to the other worker. Returns its longest gap, in seconds.

    Raises:
        LabError: it failed.
    """
    stream = underway.stream
    before, other = stream.tokens, _other(stream)
    arrivals = len(stream.arrivals_s)
    await on.admin.move("", request_id, other)
    await until(
        lambda: (
            (stream.workers[-1] == other and stream.tokens >= before + _SETTLE_TOKENS) or stream.ended_s > 0
        ),
        patience_s=_LIMIT_S,
    )
    if stream.ended_s:
        raise LabError(f"the stream ended too early: {stream.error or stream.finish_reason}")
    return max(gaps(stream.arrivals_s[max(arrivals - 1, 0) :]))


async def transfer(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of each transfer by carrier and source, and of a plain copy of as many bytes."""
    figures: dict[str, Any] = {}
    for carrier in _CARRIERS:
        async with ground(_stack(options, {"INFERFLUX_KV_TRANSPORT": carrier})) as on:
            prefixes, streams, n_bytes = [], [], 0.0
            # Nothing is fetched before both workers have measured how fast they compute.
            await _fetch_prefix(on, 0)
            await _fetch_prefix(on, 1)
            for i in range(options.times):
                took_ms, n_bytes = await _fetch_prefix(on, i)
                prefixes.append(took_ms)
                underway = await _begun(on, f"m{i}", _TRANSFERRED)
                before = await _transfers(on)
                await _moved(on, underway, f"m{i}")
                streams.append((await _transfers(on))[0] - before[0])
                await hang_up([underway.task])
            figures[f"{carrier}_prefix_ms"], figures[f"{carrier}_stream_ms"] = prefixes, streams
            figures[f"{carrier}_bytes"] = n_bytes
    figures["copy_ms"] = [_copy_ms(int(figures["shm_bytes"])) for _ in range(options.times)]
    return figures


async def _fetch_prefix(on: Ground, turn: int) -> tuple[float, float]:
    """(milliseconds, bytes) of a prompt's state that the other worker fetches; they take turns."""
    one, other = _WORKERS[turn % 2], _WORKERS[(turn + 1) % 2]
    request = on.request(prompt_tokens=_TRANSFERRED, max_tokens=1)
    await on.drain(other)
    _check_whole(await on.caller.ask(request))
    await on.admin.undrain(other)
    await on.drain(one)
    before = await _transfers(on)
    _check_whole(await on.caller.ask(request))
    after = await _transfers(on)
    await on.admin.undrain(one)
    return after[0] - before[0], after[1] - before[1]


async def _transfers(on: Ground) -> tuple[float, float]:
    """(milliseconds of all transfers, bytes of all) to either worker."""
    seen = [await on.gauges(worker) for worker in _WORKERS]
    names = ("inferflux_kv_transfer_duration_ms_sum", "inferflux_kv_transfer_bytes_total")
    total, moved = (sum(each.get(name, 0.0) for each in seen) for name in names)
    return total, moved


def _copy_ms(n_bytes: int) -> float:
    source, target = np.ones(n_bytes, np.uint8), np.ones(n_bytes, np.uint8)
    began_s = time.perf_counter()
    target[:] = source
    return (time.perf_counter() - began_s) * 1000


async def gap(options: argparse.Namespace) -> dict[str, Any]:
    """Longest gaps at moves, and the usual time between tokens, in milliseconds by length."""
    figures: dict[str, Any] = {}
    async with ground(_stack(options, {})) as on:
        for length in _LENGTHS:
            underway = await _begun(on, f"g{length}", length)
            found = [await _moved(on, underway, f"g{length}") * 1000 for _ in range(options.times)]
            usual_ms = median(gaps(underway.stream.arrivals_s)) * 1000
            figures[str(length)] = {"gaps_ms": found, "usual_ms": usual_ms}
            await hang_up([underway.task])
    return figures


async def split(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds from the first token to the second, by whether prompts are computed elsewhere."""
    figures: dict[str, Any] = {}
    for roles in (True, False):
        async with ground(_stack(options, {}, roles=roles)) as on:
            seconds: list[float] = []
            n_split = 0
            # Where nothing is decoded, nothing is split.
            beside = await _begun(on, "beside", 64)
            await on.until_scheduler(_knows_of_an_answer)
            for _ in range(options.times):
                asked = on.request(prompt_tokens=_SPLIT_PROMPT, max_tokens=_SPLIT_ANSWER)
                stream = await on.caller.ask(asked)
                if stream.has_failed:
                    raise LabError(stream.error)
                seconds.append((stream.arrivals_s[1] - stream.arrivals_s[0]) * 1000)
                n_split += len(stream.workers) > 1
            await hang_up([beside.task])
        figures["split" if roles else "unified"] = {"second_token_ms": seconds, "split": n_split}
    return figures


def _knows_of_an_answer(status: scheduler_pb2.SchedulerStatus) -> bool:
    return any(r.generated_tokens for w in status.workers for r in w.status.residents)


async def beside(options: argparse.Namespace) -> dict[str, Any]:
    """Time between tokens of streams beside long prompts, and all tokens a second, with roles and without."""
    figures: dict[str, Any] = {}
    for roles in (True, False):
        async with ground(_stack(options, {}, roles=roles)) as on:
            underway = [await _begun(on, f"b{i}", 64) for i in range(_STREAMS)]

            def long_prompt(_: int, on: Ground = on) -> Any:
                return on.request(prompt_tokens=_LONG_PROMPT, max_tokens=16)

            began_s = time.perf_counter()
            async with Load(on.caller, long_prompt, 1) as load:
                await asyncio.sleep(options.seconds)
            ended_s = time.perf_counter()
            streams = [one.stream for one in underway]
            _check(streams)
            between = sorted(g for s in streams for g in gaps(_within(s, began_s, ended_s)))
            n_prompts = sum(s.tokens > 0 for s in load.streams)
            tokens = sum(len(_within(s, began_s, ended_s)) for s in streams) + n_prompts * _LONG_PROMPT
            figures["roles" if roles else "unified"] = {
                "p99_ms": percentile(between, 0.99) * 1000,
                "answer_tokens_per_s": len(between) / (ended_s - began_s),
                "tokens_per_s": tokens / (ended_s - began_s),
                "prompts": n_prompts,
            }
            await hang_up(one.task for one in underway)
    return figures


def _within(stream: Stream, began_s: float, ended_s: float) -> list[float]:
    return [at for at in stream.arrivals_s if began_s <= at <= ended_s]


def _check(streams: list[Stream]) -> None:
    failed = [s.error for s in streams if s.error or s.ended_s]
    if failed:
        raise LabError(f"a stream failed, or ended too early: {failed[0]}")


async def same(options: argparse.Namespace) -> dict[str, Any]:
    """Answers that differ from the first ones, when they are moved and when they are not."""
    differing = {"moved": 0, "again": 0}
    async with ground(_stack(options, {})) as on:
        for i in track(range(options.prompts), "same", transient=True):
            request = on.request(prompt_tokens=_SAME_PROMPT, max_tokens=_SAME_ANSWER)
            if i % 2:
                request.params.sampling.temperature, request.params.sampling.seed = 0.8, i
            first = await _answer(on, request)
            differing["again"] += (await _answer(on, request)) != first
            await on.admin.clear_cache(admin_pb2.ClearCacheRequest())
            underway = on.caller.send(request, request_id=f"s{i}")
            stream = underway.stream
            await _first_token(stream)
            await on.admin.move("", f"s{i}", _other(stream))
            await underway.task
            _check_whole(stream)
            differing["moved"] += stream.token_ids != first
    return {"prompts": options.prompts, **differing}


async def _first_token(stream: Stream) -> None:
    await until(lambda: stream.tokens > 0 or stream.ended_s > 0)


async def _answer(on: Ground, request: inference_pb2.GenerateRequest) -> list[int]:
    """An answer for which nothing is cached."""
    await on.admin.clear_cache(admin_pb2.ClearCacheRequest())
    stream = await on.caller.ask(request)
    _check_whole(stream)
    return stream.token_ids


def _check_whole(stream: Stream) -> None:
    if stream.has_failed:
        raise LabError(f"a stream failed: {stream.error}")


def _other(stream: Stream) -> str:
    """The worker that a stream is not on."""
    return _WORKERS[stream.workers[-1] == _WORKERS[0]]


_MEASURES = {"transfer": transfer, "gap": gap, "split": split, "beside": beside, "same": same}


async def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The figures of each part."""
    figures: dict[str, Any] = {}
    for part in options.parts:
        console.print(f"{part} …", style="dim")
        figures[part] = await _MEASURES[part](options)
    return figures


def table_of(figures: dict[str, Any]) -> Table:
    """The figures for the terminal."""
    table = Table(title="KV state that moves", title_justify="left")
    for column in ("part", "what", "median", "most", "÷"):
        table.add_column(column)
    if found := figures.get("transfer"):
        copy_ms = median(found["copy_ms"])
        _row(table, "transfer", "plain copy, ms", found["copy_ms"], 1.0)
        for carrier, of in itertools.product(_CARRIERS, ("prefix", "stream")):
            times = found[f"{carrier}_{of}_ms"]
            # Nothing is fetched where that takes as long as to compute it.
            _row(
                table,
                "transfer",
                f"{carrier}, {of}, ms; copy ÷",
                times,
                copy_ms / (median(times) or math.inf),
            )
    for length, each in figures.get("gap", {}).items():
        ratio = median(each["gaps_ms"]) / each["usual_ms"]
        _row(table, "gap", f"{length} tokens, ms; ÷ {each['usual_ms']:.1f} ms", each["gaps_ms"], ratio)
    if found := figures.get("split"):
        ours, other = (found[side]["second_token_ms"] for side in ("split", "unified"))
        n = f"{found['split']['split']} of {len(ours)} split"
        _row(table, "split", f"second token, ms; {n}", ours, median(ours) / median(other))
    if found := figures.get("beside"):
        ours, other = found["roles"], found["unified"]
        for key in ("p99_ms", "answer_tokens_per_s", "tokens_per_s"):
            _row(table, "beside", f"{key}; ÷ unified", [ours[key]], ours[key] / other[key])
    if found := figures.get("same"):
        for side in ("moved", "again"):
            _row(table, "same", f"of {found['prompts']}, differ: {side}", [found[side]], 1.0)
    return table


def _row(table: Table, part: str, what: str, values: list[float], ratio: float) -> None:
    table.add_row(part, what, f"{median(values):.1f}", f"{max(values):.1f}", f"{ratio:.2f}")


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options, console = parse(arguments), Console()
    return measured(options, console, measure(options, console), table_of)


if __name__ == "__main__":
    sys.exit(main())
