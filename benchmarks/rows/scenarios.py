"""Scenarios: the set-up of each group of rows, and how their figures come out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import psutil

from benchmarks.load.stats import median

from .lab import BENCH_MODEL, DEMO_MODEL, ENGINE_CORE, OTHER_CORE, Lab, Layout
from .pairs import (
    SAMPLED,
    WAIT_POLICIES,
    Readings,
    Word,
    fastest,
    in_turn,
    load_of,
    ratio,
    reading,
    sampled_to_received,
    serve_ours,
)
from .server_rows import (
    Load,
    against_llama_server,
    long_prompt_llama_server,
    long_prompt_ours,
    open_loop,
)
from .table import RATES, rate_key

Setup = TypeVar("Setup")

_IDLE_PROMPT_TOKENS = 32
_IDLE_S = 3.0


@dataclass(frozen=True, slots=True)
class Scenario(Generic[Setup]):
    """Rows that are measured on the same servers, with what `measure` needs for it."""

    keys: tuple[str, ...]
    measure: Callable[[Setup], Readings]


async def against_bare_loop(lab: Lab, prefix: str, layout: Layout = Layout.ONE_WORKER) -> Readings:
    waves = lab.plan.waves
    is_pinned = layout is Layout.PINNED
    our_pin: tuple[Word, ...] = ("--pin", OTHER_CORE) if is_pinned else ()
    bare_pin: tuple[Word, ...] = ("--threads", 1, "--pin", ENGINE_CORE) if is_pinned else ()
    bare = partial(lab.run, "engine", "--model-file", BENCH_MODEL, *bare_pin)
    async with lab.stack(BENCH_MODEL, layout) as stack:
        for n in (8, 16):
            # A single thread waits for no other.
            policies = ("passive",) if is_pinned else WAIT_POLICIES
            tries = {policy: partial(bare, *load_of(n, 1), "--omp", policy) for policy in policies}
            policy, rates = await fastest(lab, tries)
            ours = serve_ours(lab, stack, *load_of(n, waves), "--warmup", n, *our_pin)
            mine, limit = await in_turn(lab, ours, partial(bare, *load_of(n, waves), "--omp", policy))
            raw = {"ours": mine, "bare_loop": limit, "bare_loop_wait_policies": rates}
            yield reading(f"{prefix}_c{n}", ratio(mine, limit), raw)
            if n == 8 and layout is Layout.ONE_WORKER:
                yield sampled_to_received("sampled_to_received_p50_ms", mine)


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
        lambda lab: against_llama_server(lab, Load("demo", DEMO_MODEL)),
    ),
    Scenario(
        _numbered("demo_worker_per_core_vs_llama_server", "demo_worker_per_core_grpcio_vs_llama_server"),
        lambda lab: against_llama_server(
            lab, Load("demo_worker_per_core", DEMO_MODEL, Layout.WORKER_PER_CORE)
        ),
    ),
    Scenario(
        _numbered(
            "demo_sampled_vs_llama_server",
            "demo_sampled_ttft_vs_llama_server",
            "demo_sampled_itl_p99_vs_llama_server",
        ),
        lambda lab: against_llama_server(
            lab,
            Load("demo_sampled", DEMO_MODEL, words=SAMPLED, is_grpcio_told=False, are_latencies_told=True),
        ),
    ),
    Scenario(
        _numbered(
            "bench_vs_llama_server",
            "bench_grpcio_vs_llama_server",
            "bench_ttft_vs_llama_server",
            "bench_itl_p99_vs_llama_server",
        ),
        lambda lab: against_llama_server(lab, Load("bench", BENCH_MODEL, are_latencies_told=True)),
    ),
    Scenario(
        tuple(rate_key(figure, rate) for figure in ("goodput", "itl_p99") for rate in RATES),
        open_loop,
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
