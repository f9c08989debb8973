"""Effects of preemption: what it gives to urgent requests, and takes from ordinary ones."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator

from benchmarks.load.stats import median, summary
from benchmarks.rows.lab import BENCH_MODEL, LabError
from benchmarks.rows.table import Reading
from inferflux.cli.stack import StackOptions
from inferflux.v1 import inference_pb2

from .figures import Window, first_tokens_s, rate_in
from .ground import URGENT, Bench, Ground, Load, ground
from .rows import reading
from .streams import Stream

SLOTS = 8
QUEUED = 32
_CELLS = 16384
_URGENT_MAX_TOKENS = 16
_URGENT_EVERY = 10
# Between arrivals of urgent requests: long enough that they come at any moment of the load's life.
_PAUSE_S = (0.1, 0.6)

_OPTIONS = StackOptions(model=BENCH_MODEL, slots=SLOTS, kv_cells=_CELLS)
_NAMES = {True: "on", False: "off"}


async def urgent(bench: Bench) -> AsyncIterator[Reading]:
    """Time to first token of an urgent request behind `SLOTS` running and `QUEUED` queued ones ÷ alone."""
    plan = bench.plan
    rng = random.Random(0)
    ratios: dict[bool, list[float]] = defaultdict(list)
    times: dict[str, list[float]] = defaultdict(list)
    async with ground(_OPTIONS) as on:
        await on.caller.ask(on.request())
        for number in bench.steps("urgent behind a queue", plan.rounds):
            for is_on in (True, False) if number % 2 == 0 else (False, True):
                await on.until_idle()
                alone = [await _urgent_ttft_s(on) for _ in range(plan.singles)]
                behind = await _behind_a_queue(on, is_on=is_on, count=plan.singles, rng=rng)
                ratios[is_on].append(median(behind) / median(alone))
                times["alone_s"] += alone
                times[f"preemption_{_NAMES[is_on]}_s"] += behind
    raw = {name: [round(t, 4) for t in values] for name, values in times.items()}
    for is_on, key in ((True, "urgent_ttft_ratio"), (False, "urgent_ttft_ratio_without")):
        yield reading(key, median(ratios[is_on]), each=ratios[is_on], **raw)


async def _behind_a_queue(on: Ground, *, is_on: bool, count: int, rng: random.Random) -> list[float]:
    await on.preempt(on=is_on)
    found: list[float] = []
    async with Load(on.caller, lambda _: on.request(), SLOTS + QUEUED) as load:
        for _ in range(count):
            await on.until_scheduler(lambda s: s.running == SLOTS and s.queued >= QUEUED)
            await asyncio.sleep(rng.uniform(*_PAUSE_S))
            found.append(await _urgent_ttft_s(on))
    load.check()
    return found


async def _urgent_ttft_s(on: Ground) -> float:
    stream = await on.caller.ask(on.request(max_tokens=_URGENT_MAX_TOKENS, priority=URGENT))
    if stream.has_failed:
        raise LabError(f"the urgent request failed: {stream.error}")
    return stream.ttft_s


async def mixed(bench: Bench) -> AsyncIterator[Reading]:
    """One endless load of which 1 in 10 requests is urgent; preemption goes on and off under it."""
    windows: dict[bool, list[Window]] = defaultdict(list)
    async with ground(_OPTIONS) as on:
        await on.caller.ask(on.request())
        alone = [await _urgent_ttft_s(on) for _ in range(bench.plan.singles)]

        def make(number: int) -> inference_pb2.GenerateRequest:
            return on.request(priority=URGENT if number % _URGENT_EVERY == 0 else 0)

        async with Load(on.caller, make, SLOTS + QUEUED) as load:
            for number in bench.steps("1 in 10 urgent", bench.plan.rounds):
                for is_on in (True, False) if number % 2 == 0 else (False, True):
                    await on.preempt(on=is_on)
                    await asyncio.sleep(bench.plan.settle_s)
                    begin_s = time.perf_counter()
                    await asyncio.sleep(bench.plan.window_s)
                    windows[is_on].append(Window(begin_s, time.perf_counter()))
        load.check()
    for one in _mixed_readings(load.streams, windows, alone):
        yield one


def _mixed_readings(
    streams: list[Stream], windows: dict[bool, list[Window]], alone: list[float]
) -> list[Reading]:
    ordinary = [s for s in streams if s.priority == 0]
    urgent = [s for s in streams if s.priority != 0]
    readings: list[Reading] = []
    for key, group in (("mixed_throughput_ratio", streams), ("mixed_ordinary_ratio", ordinary)):
        rates = {is_on: [rate_in(group, w) for w in windows[is_on]] for is_on in (True, False)}
        # A short window on busy cores may hold no token.
        each = [a / b if b else float("nan") for a, b in zip(rates[True], rates[False], strict=True)]
        raw = {f"tokens_per_s_{_NAMES[is_on]}": [round(r, 2) for r in rates[is_on]] for is_on in rates}
        readings.append(reading(key, median(each), each=each, **raw))
    each = [median(first_tokens_s(urgent, w)) / median(alone) for w in windows[True]]
    alone_s = [round(t, 4) for t in alone]
    readings.append(reading("mixed_urgent_ttft_ratio", median(each), each=each, alone_s=alone_s))
    for is_on, name in _NAMES.items():
        waits = [t for w in windows[is_on] for t in first_tokens_s(urgent, w)]
        found = summary(waits)
        for quantile in ("p50", "p99"):
            value = found[quantile]
            key = f"mixed_urgent_ttft_{name}_{quantile}_ms"
            readings.append(reading(key, float("nan") if value is None else value, n=len(waits), **found))
    return readings
