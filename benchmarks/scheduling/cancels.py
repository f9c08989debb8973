"""How long a cancelled request keeps its slot and its KV cells, whatever it was doing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.rows.lab import BENCH_MODEL
from benchmarks.rows.table import Reading
from inferflux.cli.stack import StackOptions
from inferflux.common.bus import Bus, Message
from inferflux.common.contract import subjects
from inferflux.v1 import scheduler_pb2

from .ground import URGENT, Bench, Ground, ground, until, until_so
from .rows import reading
from .streams import Underway, ends, hang_up

_CELLS = 16384
_LONG_PROMPT = 4000
_LONG_TOKENS = 2000
_LIMIT_S = 60.0
_WORKER = "worker-0"


@dataclass(frozen=True, slots=True)
class Freed:
    """How long it took, in seconds.

    Attributes:
        since_sent_s: from sending Cancel until the worker said that the request had left it.
        since_answered_s: the same from Cancel's answer; below 0 when it was free before.
        step_s: one step of the engine meanwhile.
    """

    since_sent_s: float
    since_answered_s: float
    step_s: float

    @property
    def excess_ms(self) -> float:
        """Return the time since Cancel was sent, less a step."""
        return max(0.0, self.since_sent_s - self.step_s) * 1000


class Departures:
    """When requests left the worker, by id, as it tells the scheduler: by then slot and cells are free."""

    def __init__(self) -> None:
        self.at_s: dict[str, float] = {}

    async def on_message(self, message: Message) -> None:
        now = time.perf_counter()
        event = scheduler_pb2.WorkerEvent.FromString(message.data)
        if event.HasField("request_finished"):
            self.at_s[event.request_finished.request_id] = now


@dataclass(frozen=True, slots=True)
class _Scene:
    """A stack with one slot, on which requests are brought into a phase and cancelled."""

    on: Ground
    departures: Departures

    async def cancel(self, request_id: str, step_s: float) -> Freed:
        sent_s = time.perf_counter()
        await self.on.caller.cancel(request_id)
        answered_s = time.perf_counter()
        await until(lambda: request_id in self.departures.at_s)
        at_s = self.departures.at_s[request_id]
        return Freed(at_s - sent_s, at_s - answered_s, step_s)

    async def until_gauges(self, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        found: dict[str, float] = {}

        async def is_so() -> bool:
            nonlocal found
            found = await self.on.gauges(_WORKER)
            return condition(found)

        await until_so(is_so)
        return found

    async def step_s(self, since: dict[str, float]) -> float:
        """The mean step of the engine since the metrics were as given."""
        now = await self.until_gauges(lambda g: _steps(g) > _steps(since))
        name = "inferflux_engine_step_seconds_sum"
        return (now[name] - since[name]) / (_steps(now) - _steps(since))

    def send(self, request_id: str, *, prompt_tokens: int = 128, priority: int = 0) -> Underway:
        request = self.on.request(prompt_tokens=prompt_tokens, max_tokens=_LONG_TOKENS, priority=priority)
        return self.on.caller.send(request, request_id=request_id)


def _steps(gauges: dict[str, float]) -> float:
    return gauges["inferflux_engine_step_seconds_count"]


@asynccontextmanager
async def _scene(*, sequences: int) -> AsyncIterator[_Scene]:
    """One slot; with 2 `sequences` who is preempted parks beside it, with 1 it has to leave the KV cache."""
    options = StackOptions(
        model=BENCH_MODEL,
        slots=1,
        kv_cells=_CELLS,
        service_env={
            "worker": {"INFERFLUX_WORKER_SEQUENCES": str(sequences)},
            "scheduler": {"INFERFLUX_FAIRNESS_PREEMPT": "true"},
        },
    )
    async with ground(options) as on:
        await on.caller.ask(on.request())
        bus = await Bus.connect(on.stack.nats_url, name="benchmark")
        departures = Departures()
        try:
            await bus.serve(subjects.SCHEDULER_EVENTS, departures.on_message)
            await bus.flush()
            yield _Scene(on, departures)
        finally:
            await bus.close()


async def _queued(scene: _Scene, request_id: str) -> Freed:
    """It holds nothing yet: free is when its client has the last word."""
    running = scene.send(f"{request_id}-other")
    await until(lambda: running.stream.tokens > 0)
    since = await scene.on.gauges(_WORKER)
    waiting = scene.send(request_id)
    await scene.on.until_scheduler(lambda s: s.queued == 1)
    step_s = await scene.step_s(since)
    sent_s = time.perf_counter()
    await scene.on.caller.cancel(request_id)
    answered_s = time.perf_counter()
    await ends([waiting], _LIMIT_S)
    await hang_up([running.task])
    return Freed(waiting.stream.ended_s - sent_s, waiting.stream.ended_s - answered_s, step_s)


async def _prefilling(scene: _Scene, request_id: str) -> Freed:
    since = await scene.on.gauges(_WORKER)
    underway = scene.send(request_id, prompt_tokens=_LONG_PROMPT)
    # Announced with the first chunk of its prompt.
    await until(lambda: bool(underway.stream.workers))
    step_s = await scene.step_s(since)
    freed = await scene.cancel(request_id, step_s)
    await ends([underway], _LIMIT_S)
    return freed


async def _decoding(scene: _Scene, request_id: str) -> Freed:
    underway = scene.send(request_id)
    await until(lambda: underway.stream.tokens > 0)
    since = await scene.on.gauges(_WORKER)
    await until(lambda: underway.stream.tokens > 8)
    freed = await scene.cancel(request_id, await scene.step_s(since))
    await ends([underway], _LIMIT_S)
    return freed


async def _preempted(scene: _Scene, request_id: str, gauge: str) -> Freed:
    """Cancelled while it waits for the turn that a more urgent request has."""
    underway = scene.send(request_id)
    await until(lambda: underway.stream.tokens > 8)
    urgent = scene.send(f"{request_id}-urgent", priority=URGENT)
    await until(lambda: urgent.stream.tokens > 0)
    since = await scene.until_gauges(lambda g: g[gauge] == 1)
    freed = await scene.cancel(request_id, await scene.step_s(since))
    await ends([underway], _LIMIT_S)
    # What is left in the cache is the urgent one's alone.
    await scene.until_gauges(_only_running_hold_cells)
    await hang_up([urgent.task])
    return freed


def _only_running_hold_cells(gauges: dict[str, float]) -> bool:
    return (
        gauges["inferflux_worker_requests"] == 1
        and gauges["inferflux_worker_swap_bytes"] == 0
        and gauges["inferflux_kv_cache_usage_ratio"] == gauges["inferflux_kv_cache_reserved_ratio"]
    )


async def _parked(scene: _Scene, request_id: str) -> Freed:
    return await _preempted(scene, request_id, "inferflux_worker_parked_requests")


async def _swapped(scene: _Scene, request_id: str) -> Freed:
    return await _preempted(scene, request_id, "inferflux_worker_swapped_requests")


_Phase = Callable[[_Scene, str], Awaitable[Freed]]
_BESIDE: dict[str, _Phase] = {
    "queued": _queued,
    "prefilling": _prefilling,
    "decoding": _decoding,
    "parked": _parked,
}


async def with_room(bench: Bench) -> AsyncIterator[Reading]:
    """The phases of a worker that has room to park."""
    async with _scene(sequences=2) as scene:
        for phase, cancelled in _BESIDE.items():
            yield await _cancelled(bench, scene, phase, cancelled)


async def without_room(bench: Bench) -> AsyncIterator[Reading]:
    """The phase of a worker that has no room to park."""
    async with _scene(sequences=1) as scene:
        yield await _cancelled(bench, scene, "swapped", _swapped)


async def _cancelled(bench: Bench, scene: _Scene, phase: str, cancelled: _Phase) -> Reading:
    freed: list[Freed] = []
    for number in bench.steps(f"cancelled while {phase}", bench.plan.cancels):
        await scene.on.until_idle()
        freed.append(await cancelled(scene, f"cancelled-{phase}-{number}"))
    each = [one.excess_ms for one in freed]
    raw = {
        "since_sent_ms": [round(one.since_sent_s * 1000, 2) for one in freed],
        "since_answered_ms": [round(one.since_answered_s * 1000, 2) for one in freed],
        "step_ms": [round(one.step_s * 1000, 2) for one in freed],
    }
    return reading(f"cancel_{phase}_ms", max(each), each=each, **raw)
