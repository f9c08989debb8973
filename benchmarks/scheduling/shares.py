"""Shares of two tenants of a stack that is too small for both, under the policy `fair`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from benchmarks.load.stats import median
from benchmarks.rows.lab import DEMO_MODEL
from benchmarks.rows.table import Reading
from inferflux.cli.stack import StackOptions

from .figures import Window, evenness, tokens_in
from .ground import Bench, Ground, Load, ground
from .rows import reading

_SLOTS = 4
# The light tenant always has as many waiting as can run, the heavy one sends ten times as much.
_LIGHT = 2 * _SLOTS
_HEAVY = 10 * _LIGHT
_CELLS = 8192


async def equal(bench: Bench) -> AsyncIterator[Reading]:
    yield await _shares(bench, "fair_share_ratio", {"heavy": 1, "light": 1})


async def weighted(bench: Bench) -> AsyncIterator[Reading]:
    yield await _shares(bench, "fair_share_ratio_weighted", {"heavy": 1, "light": 2})


async def _shares(bench: Bench, key: str, weights: dict[str, int]) -> Reading:
    scheduler = {
        "INFERFLUX_SCHEDULER_POLICY": "fair",
        "INFERFLUX_SCHEDULER_TENANT_WEIGHTS": json.dumps(weights),
    }
    options = StackOptions(
        model=DEMO_MODEL, slots=_SLOTS, kv_cells=_CELLS, service_env={"scheduler": scheduler}
    )
    async with ground(options) as on:
        served = await _served(bench, on, f"shares by weights {weights['heavy']}:{weights['light']}")
    by_weight = [(heavy / weights["heavy"], light / weights["light"]) for heavy, light in served]
    value = median(evenness(heavy, light) for heavy, light in by_weight)
    each = [heavy / light if light else float("inf") for heavy, light in by_weight]
    return reading(key, value, each=each, heavy_and_light_tokens=served, weights=weights)


async def _served(bench: Bench, on: Ground, description: str) -> list[tuple[int, int]]:
    """Tokens of the heavy and the light tenant in each window."""
    windows: list[Window] = []
    async with (
        on.tenant("heavy") as heavy,
        on.tenant("light") as light,
        Load(heavy, lambda _: on.request(), _HEAVY) as much,
        Load(light, lambda _: on.request(), _LIGHT) as little,
    ):
        await on.until_scheduler(lambda s: s.queued >= _HEAVY)
        await asyncio.sleep(bench.plan.settle_s)
        for _ in bench.steps(description, bench.plan.rounds):
            begin_s = time.perf_counter()
            await asyncio.sleep(bench.plan.window_s)
            windows.append(Window(begin_s, time.perf_counter()))
    much.check()
    little.check()
    return [(tokens_in(much.streams, w), tokens_in(little.streams, w)) for w in windows]
