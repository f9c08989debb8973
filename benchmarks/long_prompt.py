"""Effects of a long prompt on the streams that already run, and what they do to it.

    python -m benchmarks.long_prompt --url 127.0.0.1:50051 --model bench

Streams run undisturbed for a while; then a long prompt arrives. Their longest gap between two tokens until
its first token, against their median gap before it came, is how much they notice. Its time to first token,
against its time on an idle server plus the time its neighbours' tokens took meanwhile, is what it pays.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import uvloop
from rich.console import Console

from benchmarks.load import target
from benchmarks.load.command_line import make_parser, positive, write_json
from benchmarks.load.loops import Send, sender
from benchmarks.load.prompts import Prompts
from benchmarks.load.stats import gaps, median
from benchmarks.load.trace import Trace

_SETTLED_TOKENS = 32
_TOKENS_AFTER = 8
_LONG_MAX_TOKENS = 4
_LOOK_EVERY_S = 0.005


class DisturbedError(Exception):
    """The measurement did not come about; says why."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One arrival of a long prompt among running streams. Times in milliseconds."""

    undisturbed_gap_ms: float
    longest_gap_ms: float
    median_gap_meanwhile_ms: float
    ttft_alone_ms: float
    ttft_ms: float
    tokens_meanwhile: float

    @property
    def longest_over_median(self) -> float:
        return self.longest_gap_ms / self.undisturbed_gap_ms

    @property
    def ttft_ratio(self) -> float:
        """Time to first token over what it takes alone plus what its neighbours' tokens take."""
        return self.ttft_ms / (self.ttft_alone_ms + self.tokens_meanwhile * self.undisturbed_gap_ms)


def figures(
    streams: Sequence[Sequence[float]], *, settled_s: float, long: Trace, ttft_alone_s: float
) -> Figures:
    """Read the figures off the arrivals of the streams' tokens.

    Args:
        settled_s: from here on all streams were decoding.
        long: the long prompt's own trace.
    """
    first_s = long.arrivals_s[0]
    before: list[float] = []
    meanwhile: list[float] = []
    counts: list[int] = []
    for arrivals in streams:
        before += gaps([at for at in arrivals if settled_s <= at <= long.sent_s])
        # The gap during which the prompt came, those until its first token, and the one that spans it.
        earlier = [at for at in arrivals if at <= long.sent_s][-1:]
        during = [at for at in arrivals if long.sent_s < at <= first_s]
        later = [at for at in arrivals if at > first_s][:1]
        meanwhile += gaps(earlier + during + later)
        counts.append(len(during))
    return Figures(
        undisturbed_gap_ms=median(before) * 1000,
        longest_gap_ms=max(meanwhile) * 1000,
        median_gap_meanwhile_ms=median(meanwhile) * 1000,
        ttft_alone_ms=ttft_alone_s * 1000,
        ttft_ms=long.ttft_s * 1000,
        tokens_meanwhile=sum(counts) / len(counts),
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    target.add_options(parser)
    parser.add_argument("--streams", type=positive, default=4)
    parser.add_argument("--stream-tokens", type=positive, default=2400, help="most tokens of a stream")
    parser.add_argument("--prompt-tokens", type=positive, default=4000)
    parser.add_argument("--repeats", type=positive, default=3)
    return parser.parse_args(arguments)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Let the long prompt arrive `repeats` times; the medians of the ratios, and every figure.

    Raises:
        DisturbedError: a request failed, or the streams ended too early.
    """
    server = target.open_target(options)
    try:
        ids = await target.token_range(options, server)
        short = sender(
            server,
            Prompts(128, ids, options.seed),
            max_tokens=options.stream_tokens,
            limit_s=options.limit_s,
        )
        long = sender(
            server,
            Prompts(options.prompt_tokens, ids, options.seed + 1),
            max_tokens=_LONG_MAX_TOKENS,
            limit_s=options.limit_s,
        )
        runs = [await _one(options.streams, short, long, number) for number in range(options.repeats)]
    finally:
        await server.close()
    return {
        "target": options.target,
        "model": options.model,
        "streams": options.streams,
        "prompt_tokens": options.prompt_tokens,
        "longest_over_median": round(median(run.longest_over_median for run in runs), 3),
        "ttft_ratio": round(median(run.ttft_ratio for run in runs), 3),
        "runs": [{name: round(value, 3) for name, value in asdict(run).items()} for run in runs],
    }


async def _one(n_streams: int, short: Send, long: Send, number: int) -> Figures:
    alone = await _finished(long, 2 * number)
    traces = [Trace(sent_s=time.perf_counter()) for _ in range(n_streams)]
    tasks = [
        asyncio.create_task(_quietly(short, number * n_streams + i, trace)) for i, trace in enumerate(traces)
    ]
    try:
        await _until(lambda: all(trace.arrivals_s for trace in traces), traces)
        settled_s = time.perf_counter()
        seen = [len(trace.arrivals_s) for trace in traces]
        await _until(lambda: _grew(traces, seen, _SETTLED_TOKENS), traces)
        among = await _finished(long, 2 * number + 1)
        seen = [len(trace.arrivals_s) for trace in traces]
        await _until(lambda: _grew(traces, seen, _TOKENS_AFTER), traces)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    arrivals = [trace.arrivals_s for trace in traces]
    return figures(arrivals, settled_s=settled_s, long=among, ttft_alone_s=alone.ttft_s)


async def _finished(send: Send, index: int) -> Trace:
    trace = Trace(sent_s=time.perf_counter())
    await send(index, trace)
    if trace.error or not trace.arrivals_s:
        raise DisturbedError(f"the long prompt failed: {trace.error or 'no token came'}")
    return trace


async def _quietly(send: Send, index: int, trace: Trace) -> None:
    await send(index, trace)


def _grew(traces: Sequence[Trace], seen: Sequence[int], by: int) -> bool:
    return all(len(trace.arrivals_s) >= n + by for trace, n in zip(traces, seen, strict=True))


async def _until(condition: Callable[[], bool], traces: Sequence[Trace]) -> None:
    while not condition():
        for trace in traces:
            if trace.ended_s:
                raise DisturbedError(
                    f"a stream ended too early: {trace.error or 'give more --stream-tokens'}"
                )
        await asyncio.sleep(_LOOK_EVERY_S)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse(arguments)
    if options.pin is not None:
        os.sched_setaffinity(0, {options.pin})
    try:
        result = uvloop.run(measure(options))
    except (DisturbedError, OSError) as error:
        Console(stderr=True).print(str(error), style="red", markup=False)
        return 1
    Console().print_json(json.dumps(result))
    write_json(options, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
