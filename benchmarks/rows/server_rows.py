"""Rows that hold InferFlux against llama.cpp's own server: each load goes to both in turn."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.load.stats import median
from benchmarks.rows import peer_build

from . import peers
from .lab import BENCH_MODEL, DEMO_MODEL, SLOTS, Lab, busy_loops
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
    serve_ours,
)
from .peers import Peer
from .table import Reading

_CELLS = 16384
_BUSY_LOOPS = 2
_OPEN_RATE = 1.5
_VARIED: tuple[Word, ...] = ("--prompt-characters", "64:1500", "--answer-tokens", "16:128")
_OBJECTIVE: tuple[Word, ...] = ("--objective", "1000:60")
_IDLE: tuple[Word, ...] = ("--prompt-tokens", 7, "--max-tokens", 2)
# 0.5 billion parameters: what is read for each token is large, as is what a token is chosen from.
_LARGE_SCALE = 0.25
_STREAMS_BESIDE = 4
# A client of ours that costs as little as the one of llama.cpp's server.
_LEAN: tuple[Word, ...] = ("--client", "lean")


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop that both servers get.

    Attributes:
        name: of its rows.
        concurrency: requests at a time.
        words: further arguments of serve.py.
        scale: how many requests it has, in multiples of what is planned.
        are_latencies_told: whether first token and ITL have rows, too.
        is_machine_busy: whether two processes that only compute take their share of the cores.
    """

    name: str
    model: Path
    concurrency: int = 1
    words: tuple[Word, ...] = ()
    scale: float = 1.0
    are_latencies_told: bool = False
    is_machine_busy: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Its rows."""
        told = ("", "_itl_p99", "_ttft_p99") if self.are_latencies_told else ("",)
        return tuple(f"{self.name}{figure}_c{self.concurrency}" for figure in told)


async def against_llama_server(lab: Lab, load: Load) -> Readings:
    """Tokens/s by llama.cpp's, and the latencies by its."""
    n = load.concurrency
    requests = round(load.scale * max(lab.plan.fewest_requests, lab.plan.waves * n))
    async with lab.stack(load.model) as stack, busy_loops(_BUSY_LOOPS if load.is_machine_busy else 0):
        peer = await _at_its_best(
            lab, load.model, *load_of(n, max(n, requests // 4)), "--warmup", 1, *load.words
        )
        words = (*load_of(n, requests), "--warmup", n, *load.words)
        mine, others = await in_turn(
            lab, serve_ours(lab, stack, *words, *_LEAN), partial(peer.serve, lab, *words)
        )
    throughput, *latencies = load.keys
    yield reading(throughput, ratio(mine, others), {"ours": mine, "llama_server": others})
    for key, figure in zip(latencies, (_itl_p99_ms, _ttft_p99_ms), strict=False):
        yield _each_ratio(key, mine, others, figure)


async def large_vocabulary(lab: Lab) -> Readings:
    """One stream of a model whose vocabulary is large."""
    model = await lab.large_model()
    async for one in against_llama_server(lab, Load("large_vocabulary", model, scale=_LARGE_SCALE)):
        yield one


async def idle_first_token(lab: Lab) -> Readings:
    """Short prompts, one at a time; llama.cpp's are beside it for comparison."""
    words = (*load_of(1, lab.plan.single_requests), *_IDLE, "--warmup", 8)
    async with lab.stack(DEMO_MODEL) as stack:
        peer = await _at_its_best(lab, DEMO_MODEL, *load_of(1, 40), *_IDLE)
        mine, others = await in_turn(
            lab, serve_ours(lab, stack, *words, *_LEAN), partial(peer.serve, lab, *words)
        )
    each = [float(run["ttft_ms"]["p50"]) for run in mine]
    yield reading(
        "idle_first_token_p50_ms", median(each), {"ours": mine, "llama_server": others, "each": each}
    )


async def open_loop(lab: Lab) -> Readings:
    """Requests that come at random moments, of varied lengths, however many are still running."""
    count = round(_OPEN_RATE * lab.plan.open_loop_s)
    words = ("--rate", _OPEN_RATE, "--requests", count, *_VARIED, *_OBJECTIVE, "--warmup", 8)
    async with lab.stack(BENCH_MODEL) as stack:
        peer = await _at_its_best(lab, BENCH_MODEL, *load_of(8, 8))
        mine, others = await in_turn(
            lab, serve_ours(lab, stack, *words, *_LEAN), partial(peer.serve, lab, *words)
        )
    yield _each_ratio("open_loop_goodput", mine, others, _goodput_per_s)
    yield _each_ratio("open_loop_itl_p99", mine, others, _itl_p99_ms)


async def long_prompt(lab: Lab) -> Readings:
    """A long prompt among decodes, each time another one."""
    seeds = itertools.count(0, 2)
    async with lab.stack(BENCH_MODEL) as stack:
        peer = await _at_its_best(lab, BENCH_MODEL, *load_of(_STREAMS_BESIDE, _STREAMS_BESIDE))

        async def ours() -> Result:
            where = ("--url", stack.endpoint, "--model", stack.model_name, *_LEAN)
            return await lab.run("long_prompt", *where, *_once(next(seeds)), api_key=stack.api_key)

        async def theirs() -> Result:
            async with peer.start() as url:
                return await lab.run("long_prompt", *peer.address(url), *_once(next(seeds)))

        mine, others = await in_turn(lab, ours, theirs)
    each = [float(run["longest_over_median"]) for run in mine]
    yield reading(
        "longest_gap_over_median", median(each), {"ours": mine, "llama_server": others, "each": each}
    )
    yield _each_ratio("long_prompt_ttft", mine, others, lambda run: float(run["runs"][0]["ttft_ms"]))


def _once(seed: int) -> tuple[Word, ...]:
    return "--repeats", 1, "--seed", seed


def _each_ratio(
    key: str, ours: list[Result], others: list[Result], figure: Callable[[Result], float]
) -> Reading:
    """The median of the pairs' ratios, with the ratio of each pair."""
    each = ratios(ours, others, figure)
    return reading(key, median(each), {"ours": ours, "llama_server": others, "each": each})


def _goodput_per_s(run: Result) -> float:
    return float(run["goodput_per_s"])


def _ttft_p99_ms(run: Result) -> float:
    return float(run["ttft_ms"]["p99"])


def _itl_p99_ms(run: Result) -> float:
    return float(run["itl_ms"]["p99"])


@dataclass(frozen=True, slots=True)
class _Server:
    """llama.cpp's own server of a model, with as many threads, slots and cells as ours.

    Attributes:
        policy: how its threads wait for each other (OMP_WAIT_POLICY).
    """

    peer: Peer
    model: Path
    policy: str

    def start(self) -> AbstractAsyncContextManager[str]:
        """Run it; gives its address."""
        threads = len(os.sched_getaffinity(0))
        return peers.llama_server(
            self.peer, self.model, threads=threads, slots=SLOTS, cells=_CELLS, omp=self.policy
        )

    def address(self, url: str) -> tuple[Word, ...]:
        """Arguments that tell a script where it is."""
        return "--target", "openai-sse", "--url", url, "--model", self.model.stem

    async def serve(self, lab: Lab, *arguments: Word) -> Result:
        """A run of serve.py on it.

        It is started for each run: the threads of an idle server that waits actively would slow ours down.
        """
        async with self.start() as url:
            result = await lab.serve(*self.address(url), *arguments)
        return {**result, "server": self.peer.name}


async def _at_its_best(lab: Lab, model: Path, *words: Word) -> _Server:
    """llama.cpp's own server as it is here, waiting in the way that makes it fastest with this load."""
    peer = await asyncio.to_thread(peers.find, peer_build.built_server())
    lab.say(f"  llama.cpp's own server: {peer.name}")
    servers = {policy: _Server(peer, model, policy) for policy in WAIT_POLICIES}
    tries = {policy: partial(server.serve, lab, *words) for policy, server in servers.items()}
    policy, _ = await fastest(lab, tries)
    return servers[policy]
