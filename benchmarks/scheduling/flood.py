"""A tenant beside another tenant's flood, and requests beside one that kills engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.stats import median
from benchmarks.rows.lab import DEMO_MODEL, LabError
from benchmarks.rows.table import Reading
from inferflux.cli.stack import StackOptions

from .figures import Window, changed, longest_gap_s
from .ground import URGENT, Bench, Ground, ground
from .rows import reading
from .streams import Stream, countdown, ends, failures

_FLOOD = 100
_FLOOD_MAX_TOKENS = 128
_OTHER_MAX_TOKENS = 16
_SLOTS = 16
_CELLS = 16384
_LIMIT_S = 300.0

# On the PYTHONPATH of a worker: its engine is killed by requests whose id starts with `poison`.
_POISONED = Path(__file__).resolve().parents[2] / "tests" / "harness" / "poisoned"
_OTHERS = 20
_POISON_SLOTS = 8


@dataclass(frozen=True, slots=True)
class Flood:
    """One flood: what the other tenant waited, in seconds, and the tokens per second of all together."""

    other_ttft_s: float
    tokens_per_s: float


async def flood(bench: Bench) -> AsyncIterator[Reading]:
    """The other tenant asks once the flood runs and waits; `fcfs` is the order without regard to tenants."""
    floods = {policy: await _floods(bench, policy) for policy in ("priority", "fcfs")}
    for policy, key in (("priority", "flood_other_ttft_s"), ("fcfs", "flood_other_ttft_fcfs_s")):
        each = [one.other_ttft_s for one in floods[policy]]
        yield reading(key, max(each), each=each)
    rates = {policy: [round(one.tokens_per_s, 1) for one in of] for policy, of in floods.items()}
    value = median(rates["priority"]) / median(rates["fcfs"])
    yield reading("flood_throughput_ratio", value, tokens_per_s=rates)


async def _floods(bench: Bench, policy: str) -> list[Flood]:
    options = StackOptions(
        model=DEMO_MODEL,
        slots=_SLOTS,
        kv_cells=_CELLS,
        service_env={"scheduler": {"INFERFLUX_SCHEDULER_POLICY": policy}},
    )
    async with ground(options) as on:
        await on.caller.ask(on.request())
        return [await _flood(on) for _ in bench.steps(f"flood under {policy}", bench.plan.rounds)]


async def _flood(on: Ground) -> Flood:
    async with on.tenant("flood") as many, on.tenant("other") as other:
        underway = [many.send(on.request(max_tokens=_FLOOD_MAX_TOKENS)) for _ in range(_FLOOD)]
        await on.until_scheduler(lambda s: s.running == _SLOTS and s.queued >= _FLOOD // 2)
        asked = await other.ask(on.request(max_tokens=_OTHER_MAX_TOKENS))
        streams = [asked, *await ends(underway, _LIMIT_S)]
    if failed := failures(streams):
        raise LabError(f"a request failed: {failed[0]}")
    begun_s, ended_s = min(s.sent_s for s in streams), max(s.ended_s for s in streams)
    return Flood(asked.ttft_s, sum(s.tokens for s in streams) / (ended_s - begun_s))


@dataclass(frozen=True, slots=True)
class Poisoning:
    """One request that killed engines, among others: these, and how many of them it changed."""

    others: list[Stream]
    changed: int
    longest_gap_s: float


async def poison(bench: Bench) -> AsyncIterator[Reading]:
    """With one worker, and with two."""
    done: list[Poisoning] = []
    for workers in (1, 2):
        options = StackOptions(
            model=DEMO_MODEL,
            workers=workers,
            slots=_POISON_SLOTS,
            threads=1,
            service_env={"worker": {"PYTHONPATH": str(_POISONED)}},
        )
        async with ground(options) as on:
            requests = [countdown(on.model, 30 - n % 10, 1) for n in range(_OTHERS)]
            expected = await ends([on.caller.send(request) for request in requests], _LIMIT_S)
            for number in bench.steps(f"poison, workers: {workers}", bench.plan.kills):
                underway = [on.caller.send(request) for request in requests]
                await on.until_scheduler(lambda s: s.running > 0)
                request = on.request(priority=URGENT)
                culprit = on.caller.send(request, request_id=f"poison-{number}")
                others = await ends(underway, _LIMIT_S)
                (blamed,) = await ends([culprit], _LIMIT_S)
                if "alone" not in blamed.error:
                    raise LabError(f"the request that kills engines ended so: {blamed.error or 'well'}")
                window = Window(min(s.sent_s for s in others), max(s.ended_s for s in others))
                gap_s = longest_gap_s(others, window)
                done.append(Poisoning(others, changed(others, expected), gap_s))
                await on.until_idle()
    failed = [len(failures(one.others)) for one in done]
    yield reading("poison_others_failed", sum(failed), each=failed)
    texts = [one.changed for one in done]
    yield reading("poison_others_changed", sum(texts), each=texts)
    each = [one.longest_gap_s for one in done]
    yield reading("poison_others_longest_gap_s", max(each), each=each)
