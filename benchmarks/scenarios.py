"""What is set up for each group of rows, and how their figures come out of it."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import psutil

from inferflux.cli.stack import Stack

from . import peers
from .calm import Run, calm_rounds
from .lab import BENCH_MODEL, DEMO_MODEL, ENGINE_CORE, OTHER_CORE, SLOTS, Lab, Layout
from .rows import ROWS, Reading
from .stats import median

Readings = AsyncIterator[Reading]
Word = str | int
Setup = TypeVar("Setup")

WAIT_POLICIES = ("passive", "active", "default")
_IDLE_PROMPT_TOKENS = 32
_IDLE_S = 3.0
_CELLS = 16384


@dataclass(frozen=True, slots=True)
class Scenario(Generic[Setup]):
    """Rows that are measured on the same servers, with what `measure` needs for it."""

    keys: tuple[str, ...]
    measure: Callable[[Setup], Readings]


def reading(key: str, value: float, raw: dict[str, Any]) -> Reading:
    """A row's figure; its commands are those of the runs in `raw`."""
    lists = (entries for entries in raw.values() if isinstance(entries, list))
    runs = (entry for entries in lists for entry in entries if isinstance(entry, dict))
    return Reading(ROWS[key], value, raw, tuple(dict.fromkeys(run["command"] for run in runs)))


def ratio(ours: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> float:
    """The median over the pairs of our tokens/s by the other's."""
    return median(a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(ours, others, strict=True))


async def in_turn(lab: Lab, *runs: Run) -> list[list[dict[str, Any]]]:
    """Make these runs one after the other, as often as pairs are planned; returns the results of each.

    What changes on the machine meanwhile meets all.
    """
    rounds = await calm_rounds(lab.plan.pairs, runs, lab.say)
    return [list(results) for results in zip(*rounds, strict=True)]


async def fastest(lab: Lab, tries: Mapping[str, Run]) -> tuple[str, dict[str, float]]:
    """The way of waiting (OMP_WAIT_POLICY) that gives most tokens/s in one run each, and all of them.

    What we are held against is to be at its best.
    """
    if len(tries) == 1:
        return next(iter(tries)), {}
    rates = {policy: float((await run())["tokens_per_s"]) for policy, run in tries.items()}
    best = max(rates, key=lambda policy: rates[policy])
    lab.say(f"  held against OMP_WAIT_POLICY {best}, the fastest of {rates}")
    return best, rates


def serve_ours(lab: Lab, stack: Stack, *arguments: Word) -> Run:
    """A run of serve.py on our stack."""
    words = ("--url", stack.endpoint, "--model", stack.model_name, *arguments)
    return partial(lab.run, "serve", *words, api_key=stack.api_key)


def load_of(concurrency: int, waves: int) -> tuple[Word, ...]:
    """Arguments for `waves` times `concurrency` requests, that many at a time."""
    return "--concurrency", concurrency, "--requests", concurrency * waves


async def against_bare_loop(lab: Lab, prefix: str, layout: Layout = Layout.ONE_WORKER) -> Readings:
    waves = lab.plan.waves
    is_pinned = layout is Layout.PINNED
    our_pin: tuple[Word, ...] = ("--pin", OTHER_CORE) if is_pinned else ()
    bare_pin: tuple[Word, ...] = ("--threads", 1, "--pin", ENGINE_CORE) if is_pinned else ()
    bare = partial(lab.run, "engine", "--model-file", BENCH_MODEL, *bare_pin)
    async with lab.stack(BENCH_MODEL, layout) as stack:
        for n in (8, 16):
            # A single thread waits for nobody.
            policies = ("passive",) if is_pinned else WAIT_POLICIES
            tries = {policy: partial(bare, *load_of(n, 1), "--omp", policy) for policy in policies}
            policy, rates = await fastest(lab, tries)
            ours = serve_ours(lab, stack, *load_of(n, waves), "--warmup", n, *our_pin)
            mine, limit = await in_turn(lab, ours, partial(bare, *load_of(n, waves), "--omp", policy))
            raw = {"ours": mine, "bare_loop": limit, "bare_loop_wait_policies": rates}
            yield reading(f"{prefix}_c{n}", ratio(mine, limit), raw)
            if n == 8 and layout is Layout.ONE_WORKER:
                yield sampled_to_received("sampled_to_received_p50_ms", mine)


def sampled_to_received(key: str, runs: list[dict[str, Any]]) -> Reading:
    return reading(key, median(run["sampled_to_received_ms"]["p50"] for run in runs), {"ours": runs})


async def against_llama_server(
    lab: Lab, prefix: str, model: Path, layout: Layout = Layout.ONE_WORKER
) -> Readings:
    python = await asyncio.to_thread(peers.install)
    # The demo model's runs are short: more of them, so that a run is not over before it has begun.
    waves = lab.plan.waves * (8 if model == DEMO_MODEL else 1)
    async with lab.stack(model, layout) as stack:
        for n in (8, 16):
            trial = (*load_of(n, max(1, waves // 2)), "--warmup", n)
            tries = {
                policy: partial(serve_peer, lab, python, model, policy, *trial) for policy in WAIT_POLICIES
            }
            policy, rates = await fastest(lab, tries)
            words = (*load_of(n, waves), "--warmup", n)
            lean = serve_ours(lab, stack, *words, "--client", "lean")
            grpcio = serve_ours(lab, stack, *words)
            theirs = partial(serve_peer, lab, python, model, policy, *words)
            by_lean, by_grpcio, by_peer = await in_turn(lab, lean, grpcio, theirs)
            about = {"llama_server": by_peer, "llama_server_wait_policies": rates}
            yield reading(
                f"{prefix}_vs_llama_server_c{n}", ratio(by_lean, by_peer), {"ours": by_lean, **about}
            )
            key = f"{prefix}_grpcio_vs_llama_server_c{n}"
            yield reading(key, ratio(by_grpcio, by_peer), {"ours": by_grpcio, **about})
            if n == 8 and model == DEMO_MODEL and layout is Layout.ONE_WORKER:
                yield sampled_to_received("demo_sampled_to_received_p50_ms", by_grpcio)


async def serve_peer(lab: Lab, python: Path, model: Path, policy: str, *arguments: Word) -> dict[str, Any]:
    """A run of serve.py on llama.cpp's own server.

    It is started for each run: the threads of an idle server that waits actively would slow ours down.
    """
    server = llama_server(python, model, policy)
    async with server as url:
        target = ("--target", "openai-sse", "--url", url, "--model", model.stem)
        return await lab.run("serve", *target, *arguments)


def llama_server(python: Path, model: Path, policy: str) -> AbstractAsyncContextManager[str]:
    """llama.cpp's own server with as many threads, slots and cells as ours."""
    threads = len(os.sched_getaffinity(0))
    return peers.llama_server(python, model, threads=threads, slots=SLOTS, cells=_CELLS, omp=policy)


async def idle_ttft(lab: Lab, prefix: str, model: Path) -> Readings:
    words: tuple[Word, ...] = ("--concurrency", 1, "--requests", lab.plan.single_requests)
    words += ("--prompt-tokens", _IDLE_PROMPT_TOKENS, "--max-tokens", 2)
    bare = partial(lab.run, "engine", "--model-file", model, *words)
    async with lab.stack(model) as stack:
        ours = serve_ours(lab, stack, *words, "--warmup", 8)
        mine, passive = await in_turn(lab, ours, partial(bare, "--omp", "passive"))
        active = [await bare("--omp", "active")]
    times = {"passive": _median_ttft_ms(passive), "active": _median_ttft_ms(active)}
    bare_ms = min(times.values())
    raw = {"ours": mine, "bare_loop": passive + active, "bare_loop_p50_ms": times}
    for name in ("p50", "p99"):
        added = median(run["ttft_ms"][name] for run in mine) - bare_ms
        yield reading(f"{prefix}ttft_added_idle_{name}_ms", added, raw)


def _median_ttft_ms(runs: Sequence[dict[str, Any]]) -> float:
    return median(run["ttft_ms"]["p50"] for run in runs)


async def long_prompt_ours(lab: Lab) -> Readings:
    async with lab.stack(BENCH_MODEL) as stack:
        url = ("--url", stack.endpoint, "--model", stack.model_name)
        runs = await _long_prompts(lab, partial(lab.run, "long_prompt", *url, api_key=stack.api_key))
    for one in _long_prompt_readings(runs, ""):
        yield one


async def long_prompt_llama_server(lab: Lab) -> Readings:
    python = await asyncio.to_thread(peers.install)
    async with llama_server(python, BENCH_MODEL, "passive") as url:
        server = ("--target", "openai-sse", "--url", url, "--model", BENCH_MODEL.stem)
        runs = await _long_prompts(lab, partial(lab.run, "long_prompt", *server))
    for one in _long_prompt_readings(runs, "llama_server_"):
        yield one


async def _long_prompts(lab: Lab, run: Callable[..., Awaitable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """As many long prompts as are planned, each a run of its own with prompts of its own."""
    seeds = itertools.count()
    rounds = await calm_rounds(
        lab.plan.repeats, [lambda: run("--repeats", 1, "--seed", 2 * next(seeds))], lab.say
    )
    return [result for (result,) in rounds]


def _long_prompt_readings(runs: list[dict[str, Any]], prefix: str) -> list[Reading]:
    figures = {"longest_gap_over_median": "longest_over_median", "long_prompt_ttft_ratio": "ttft_ratio"}
    readings = []
    for key, figure in figures.items():
        each = [run[figure] for run in runs]
        readings.append(reading(prefix + key, median(each), {"runs": runs, "each": each}))
    return readings


async def memory(lab: Lab) -> Readings:
    services = ("gateway", "scheduler", "policy")
    async with lab.stack(DEMO_MODEL) as stack:
        processes = {name: psutil.Process(stack.processes[name].pid) for name in services}
        fresh = {name: _rss_mb(process) for name, process in processes.items()}
        load = await serve_ours(lab, stack, *load_of(16, lab.plan.waves))()
        await asyncio.sleep(_IDLE_S)
        after = {name: _rss_mb(process) for name, process in processes.items()}
        children = [_rss_mb(child) for child in processes["gateway"].children(recursive=True)]
    for name in services:
        raw = {"after_start_mb": fresh[name], "after_load_mb": after[name], "load": [load]}
        yield reading(f"rss_mb_{name}", after[name], raw)
    yield reading(
        "rss_mb_gateway_tokenizer_process", max(children, default=float("nan")), {"count": len(children)}
    )


def _rss_mb(process: psutil.Process) -> float:
    return round(float(process.memory_info().rss) / 1e6, 1)


async def client_cost(lab: Lab) -> Readings:
    result = await lab.run("client_cost")
    for name in ("grpc", "lean_grpc", "sse"):
        yield reading(f"client_us_per_token_{name}", result[f"{name}_us_per_token"], {"runs": [result]})


def _numbered(*prefixes: str) -> tuple[str, ...]:
    return tuple(f"{prefix}_c{n}" for prefix in prefixes for n in (8, 16))


SCENARIOS: tuple[Scenario[Lab], ...] = (
    Scenario(
        (*_numbered("shared"), "sampled_to_received_p50_ms"),
        lambda lab: against_bare_loop(lab, "shared"),
    ),
    Scenario(
        _numbered("worker_per_core"),
        lambda lab: against_bare_loop(lab, "worker_per_core", Layout.WORKER_PER_CORE),
    ),
    Scenario(
        _numbered("pinned"),
        lambda lab: against_bare_loop(lab, "pinned", Layout.PINNED),
    ),
    Scenario(
        (
            *_numbered("demo_vs_llama_server", "demo_grpcio_vs_llama_server"),
            "demo_sampled_to_received_p50_ms",
        ),
        lambda lab: against_llama_server(lab, "demo", DEMO_MODEL),
    ),
    Scenario(
        _numbered("demo_worker_per_core_vs_llama_server", "demo_worker_per_core_grpcio_vs_llama_server"),
        lambda lab: against_llama_server(lab, "demo_worker_per_core", DEMO_MODEL, Layout.WORKER_PER_CORE),
    ),
    Scenario(
        _numbered("bench_vs_llama_server", "bench_grpcio_vs_llama_server"),
        lambda lab: against_llama_server(lab, "bench", BENCH_MODEL),
    ),
    Scenario(
        ("ttft_added_idle_p50_ms", "ttft_added_idle_p99_ms"),
        lambda lab: idle_ttft(lab, "", BENCH_MODEL),
    ),
    Scenario(
        ("demo_ttft_added_idle_p50_ms", "demo_ttft_added_idle_p99_ms"),
        lambda lab: idle_ttft(lab, "demo_", DEMO_MODEL),
    ),
    Scenario(("longest_gap_over_median", "long_prompt_ttft_ratio"), long_prompt_ours),
    Scenario(
        ("llama_server_longest_gap_over_median", "llama_server_long_prompt_ttft_ratio"),
        long_prompt_llama_server,
    ),
    Scenario(
        ("rss_mb_gateway", "rss_mb_scheduler", "rss_mb_policy", "rss_mb_gateway_tokenizer_process"),
        memory,
    ),
    Scenario(
        ("client_us_per_token_grpc", "client_us_per_token_lean_grpc", "client_us_per_token_sse"),
        client_cost,
    ),
)
