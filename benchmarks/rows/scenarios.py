"""Scenarios: the set-up of each group of rows, and how their figures come out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import psutil

from .lab import BENCH_MODEL, DEMO_MODEL, Lab
from .pairs import SAMPLED, WAIT_POLICIES, Readings, fastest, in_turn, load_of, ratio, reading, serve_ours
from .server_rows import (
    Load,
    against_llama_server,
    idle_first_token,
    large_vocabulary,
    long_prompt,
    open_loop,
)
from .table import CONCURRENCIES

Setup = TypeVar("Setup")

_IDLE_S = 3.0
# The demo model's runs are short: more requests, so that a run is not over before it has begun.
_DEMO_SCALE = 4.0


@dataclass(frozen=True, slots=True)
class Scenario(Generic[Setup]):
    """Rows that are measured on the same servers, with what `measure` needs for it."""

    keys: tuple[str, ...]
    measure: Callable[[Setup], Readings]


async def against_bare_loop(lab: Lab, concurrency: int) -> Readings:
    """Tokens/s of all processes, grpcio as client included, and of llama_decode alone on the same cores."""
    load = load_of(concurrency, lab.plan.waves * concurrency)
    bare = partial(lab.run, "engine", "--model-file", BENCH_MODEL)
    async with lab.stack(BENCH_MODEL) as stack:
        trial = load_of(concurrency, concurrency)
        tries = {policy: partial(bare, *trial, "--omp", policy) for policy in WAIT_POLICIES}
        policy, rates = await fastest(lab, tries)
        ours = serve_ours(lab, stack, *load, "--warmup", concurrency)
        mine, limit = await in_turn(lab, ours, partial(bare, *load, "--omp", policy))
    raw = {"ours": mine, "bare_loop": limit, "bare_loop_wait_policies": rates}
    yield reading(f"shared_c{concurrency}", ratio(mine, limit), raw)


async def memory(lab: Lab) -> Readings:
    services = ("gateway", "scheduler", "policy")
    async with lab.stack(DEMO_MODEL) as stack:
        processes = {name: psutil.Process(stack.processes[name].pid) for name in services}
        fresh = {name: _rss_mb(process) for name, process in processes.items()}
        load = await serve_ours(lab, stack, *load_of(16, 16 * lab.plan.waves))()
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


def _closed_loop(load: Load) -> Scenario[Lab]:
    return Scenario(load.keys, partial(against_llama_server, load=load))


SCENARIOS: tuple[Scenario[Lab], ...] = (
    *(_closed_loop(Load("demo_sampled", DEMO_MODEL, n, SAMPLED, _DEMO_SCALE)) for n in CONCURRENCIES),
    *(_closed_loop(Load("smollm2", BENCH_MODEL, n, are_latencies_told=True)) for n in CONCURRENCIES),
    *(
        _closed_loop(Load("smollm2_sampled", BENCH_MODEL, n, SAMPLED, are_latencies_told=True))
        for n in CONCURRENCIES
    ),
    Scenario(("large_vocabulary_c1",), large_vocabulary),
    _closed_loop(Load("smollm2_busy", BENCH_MODEL, 1, scale=0.5, is_machine_busy=True)),
    _closed_loop(Load("demo_busy", DEMO_MODEL, 1, scale=_DEMO_SCALE, is_machine_busy=True)),
    Scenario(("idle_first_token_p50_ms",), idle_first_token),
    Scenario(("longest_gap_over_median", "long_prompt_ttft"), long_prompt),
    Scenario(("open_loop_goodput", "open_loop_itl_p99"), open_loop),
    *(Scenario((f"shared_c{n}",), partial(against_bare_loop, concurrency=n)) for n in (8, 16)),
    Scenario(
        ("rss_mb_gateway", "rss_mb_scheduler", "rss_mb_policy", "rss_mb_gateway_tokenizer_process"), memory
    ),
)
