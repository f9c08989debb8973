"""Rows that hold InferFlux against llama.cpp's own server: each load goes to both in turn."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.load.stats import median
from benchmarks.rows import peer_build
from inferflux.cli.stack import Stack

from . import peers
from .calm import Run, calm_rounds
from .lab import BENCH_MODEL, DEMO_MODEL, SLOTS, Lab, Layout
from .pairs import (
    WAIT_POLICIES,
    Readings,
    Result,
    Word,
    fastest,
    in_turn,
    load_of,
    ratio,
    ratios,
    reading,
    sampled_to_received,
    serve_ours,
)
from .peers import Peer
from .table import RATES, Reading, rate_key

_CELLS = 16384
_VARIED: tuple[Word, ...] = ("--prompt-characters", "64:1500", "--answer-tokens", "16:128")
_OBJECTIVE: tuple[Word, ...] = ("--objective", "1000:60")
_SERVER = "server"
"""The key of the server's name in a run of llama.cpp's."""


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop of 8 and of 16 requests that both servers get.

    Attributes:
        prefix: of the rows' keys.
        words: further arguments of serve.py.
        is_grpcio_told: whether tokens/s are told through grpcio, too.
        are_latencies_told: whether first token and ITL have rows, too.
    """

    prefix: str
    model: Path
    layout: Layout = Layout.ONE_WORKER
    words: tuple[Word, ...] = ()
    is_grpcio_told: bool = True
    are_latencies_told: bool = False


async def against_llama_server(lab: Lab, load: Load) -> Readings:
    peer = await find_peer(lab)
    # The demo model's runs are short: more of them, so that a run is not over before it has begun.
    waves = lab.plan.waves * (8 if load.model == DEMO_MODEL else 1)
    async with lab.stack(load.model, load.layout) as stack:
        for n in (8, 16):
            trial = (*load_of(n, max(1, waves // 2)), "--warmup", n, *load.words)
            policy, rates = await fastest(lab, _tries(lab, peer, load.model, trial))
            words = (*load_of(n, waves), "--warmup", n, *load.words)
            runs = [serve_ours(lab, stack, *words, "--client", "lean")]
            if load.is_grpcio_told:
                runs.append(serve_ours(lab, stack, *words))
            theirs = partial(serve_peer, lab, peer, load.model, policy, *words)
            by_lean, *by_grpcio, by_peer = await in_turn(lab, *runs, theirs)
            about = {"llama_server": by_peer, "llama_server_wait_policies": rates}
            raw = {"ours": by_lean, **about}
            yield reading(f"{load.prefix}_vs_llama_server_c{n}", ratio(by_lean, by_peer), raw)
            for mine in by_grpcio:
                key = f"{load.prefix}_grpcio_vs_llama_server_c{n}"
                yield reading(key, ratio(mine, by_peer), {"ours": mine, **about})
                if n == 8 and load.model == DEMO_MODEL and load.layout is Layout.ONE_WORKER:
                    yield sampled_to_received("demo_sampled_to_received_p50_ms", mine)
            if load.are_latencies_told:
                for name, figure in (("ttft", _ttft_p50_ms), ("itl_p99", _itl_p99_ms)):
                    key = f"{load.prefix}_{name}_vs_llama_server_c{n}"
                    yield _each_ratio(key, by_lean, by_peer, figure)


async def open_loop(lab: Lab) -> Readings:
    """Requests that come at random moments, of varied lengths, however many are still running."""
    peer = await find_peer(lab)
    async with lab.stack(BENCH_MODEL) as stack:
        trial = (*load_of(8, 1), "--warmup", 8)
        policy, _ = await fastest(lab, _tries(lab, peer, BENCH_MODEL, trial))
        for rate in RATES:
            count = round(rate * lab.plan.open_loop_s)
            words = ("--rate", rate, "--requests", count, *_VARIED, *_OBJECTIVE, "--warmup", 8)
            ours = serve_ours(lab, stack, *words, "--client", "lean")
            theirs = partial(serve_peer, lab, peer, BENCH_MODEL, policy, *words)
            mine, others = await in_turn(lab, ours, theirs)
            yield _each_ratio(rate_key("goodput", rate), mine, others, _goodput_per_s)
            yield _each_ratio(rate_key("itl_p99", rate), mine, others, _itl_p99_ms)


def _each_ratio(
    key: str, ours: list[Result], others: list[Result], figure: Callable[[Result], float]
) -> Reading:
    """The median of the pairs' ratios, with the ratio of each pair."""
    each = ratios(ours, others, figure)
    return reading(key, median(each), {"ours": ours, "llama_server": others, "each": each})


def _goodput_per_s(run: Result) -> float:
    return float(run["goodput_per_s"])


def _ttft_p50_ms(run: Result) -> float:
    return float(run["ttft_ms"]["p50"])


def _itl_p99_ms(run: Result) -> float:
    return float(run["itl_ms"]["p99"])


async def find_peer(lab: Lab) -> Peer:
    """llama.cpp's own server as it is here; says which it is."""
    peer = await asyncio.to_thread(peers.find, peer_build.built_server())
    lab.say(f"  llama.cpp's own server: {peer.name}")
    return peer


def _tries(lab: Lab, peer: Peer, model: Path, words: tuple[Word, ...]) -> dict[str, Run]:
    """A run for each way that the server's threads may wait."""
    return {policy: partial(serve_peer, lab, peer, model, policy, *words) for policy in WAIT_POLICIES}


async def serve_peer(lab: Lab, peer: Peer, model: Path, policy: str, *arguments: Word) -> Result:
    """A run of serve.py on llama.cpp's own server.

    It is started for each run: the threads of an idle server that waits actively would slow ours down.
    """
    async with llama_server(peer, model, policy) as url:
        result = await lab.serve(*_target(url, model), *arguments)
    return {**result, _SERVER: peer.name}


def llama_server(peer: Peer, model: Path, policy: str) -> AbstractAsyncContextManager[str]:
    """llama.cpp's own server with as many threads, slots and cells as ours."""
    threads = len(os.sched_getaffinity(0))
    return peers.llama_server(peer, model, threads=threads, slots=SLOTS, cells=_CELLS, omp=policy)


def _target(url: str, model: Path) -> tuple[Word, ...]:
    return "--target", "openai-sse", "--url", url, "--model", model.stem


async def long_prompt_ours(lab: Lab) -> Readings:
    async with lab.stack(BENCH_MODEL) as stack:
        run = partial(lab.run, "long_prompt", *_address(stack), api_key=stack.api_key)
        runs = await _long_prompts(lab, run)
    for one in _long_prompt_readings(runs, ""):
        yield one


def _address(stack: Stack) -> tuple[Word, ...]:
    return "--url", stack.endpoint, "--model", stack.model_name


async def long_prompt_llama_server(lab: Lab) -> Readings:
    peer = await find_peer(lab)
    async with llama_server(peer, BENCH_MODEL, "passive") as url:
        runs = await _long_prompts(lab, partial(lab.run, "long_prompt", *_target(url, BENCH_MODEL)))
    for one in _long_prompt_readings([{**run, _SERVER: peer.name} for run in runs], "llama_server_"):
        yield one


async def _long_prompts(lab: Lab, run: Callable[..., Awaitable[Result]]) -> list[Result]:
    """As many long prompts as are planned, each a run of its own with prompts of its own."""
    seeds = itertools.count()
    rounds = await calm_rounds(
        lab.plan.repeats, [lambda: run("--repeats", 1, "--seed", 2 * next(seeds))], lab.say
    )
    return [result for (result,) in rounds]


def _long_prompt_readings(runs: list[Result], prefix: str) -> list[Reading]:
    figures = {"longest_gap_over_median": "longest_over_median", "long_prompt_ttft_ratio": "ttft_ratio"}
    readings = []
    for key, figure in figures.items():
        each = [run[figure] for run in runs]
        readings.append(reading(prefix + key, median(each), {"runs": runs, "each": each}))
    return readings
