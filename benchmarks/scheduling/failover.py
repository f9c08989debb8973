"""Effects on clients when a worker, the leading scheduler or nats-server is killed under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from benchmarks.rows.lab import BENCH_MODEL, DEMO_MODEL, LabError
from benchmarks.rows.table import Reading
from inferflux.cli.stack import StackOptions
from inferflux.common.process.machine.cores import usable_cores
from inferflux.v1 import scheduler_pb2

from .figures import Window, changed, first_admission_s, longest_gap_s, lost_or_doubled, median_gap_s
from .ground import Bench, Ground, Load, ground, ready_workers, until
from .rows import reading
from .streams import Request, Stream, Underway, countdown, ends, failures

STREAMS = 8
_CELLS = 16384
_LIMIT_S = 240.0
_FOR_EVER_S = 1e9

# The streams of a killed worker.
_DEMO_STARTS = (30, 29, 28, 27)
_DEMO_KILLED_AT = 8
_MAX_TOKENS = 256
_KILLED_AT = 64

# The load under a killed scheduler: streams that outlast it, and short requests beside them.
_LONG_TOKENS = 600
_SHORT_PROMPT = 32
_SHORT_TOKENS = 4
_SHORT_CLIENTS = 3
_WATCHED_S = 6.0

# The load under a restarted nats-server: STREAMS run and the rest is queued.
_NATS_REQUESTS = 40
_NATS_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Kill:
    """Streams that were under way when something was killed at `at_s`."""

    streams: list[Stream]
    at_s: float
    noticed_s: float = 0.0
    changed: int = 0

    @property
    def failed(self) -> list[str]:
        return failures(self.streams)

    @property
    def lost_or_doubled(self) -> int:
        return lost_or_doubled(self.streams)

    @property
    def on_again_after_s(self) -> list[float]:
        """From the kill to the next token of each stream that got one, in the order they went on."""
        nexts = (next((at for at in s.arrivals_s if at > self.at_s), None) for s in self.streams)
        return sorted(round(at - self.at_s, 3) for at in nexts if at is not None)

    @property
    def longest_gap_s(self) -> float:
        return longest_gap_s(self.streams, Window(self.at_s, _FOR_EVER_S))


async def worker(bench: Bench) -> AsyncIterator[Reading]:
    """A worker killed with `STREAMS` streams on it, while another has room."""
    demo = await _kill_workers(bench, "demo model, worker killed")
    of_bench = await _kill_workers(bench, "bench model, worker killed", is_demo=False)
    kills = [*demo, *of_bench]
    yield _count("worker_killed_failed", [len(k.failed) for k in kills], why=_why(kills))
    yield _count("worker_killed_lost_or_doubled", [k.lost_or_doubled for k in kills])
    yield reading(
        "worker_killed_noticed_s", max(k.noticed_s for k in kills), each=[k.noticed_s for k in kills]
    )
    # The bench model's weights are random, its nearly equal choices many: any other batch changes its text.
    yield _count("worker_killed_changed", [k.changed for k in demo])
    for key, of in (("worker_killed_longest_gap_s", of_bench), ("worker_killed_demo_longest_gap_s", demo)):
        each = [k.longest_gap_s for k in of]
        yield reading(key, max(each), each=each, on_again_after_s=[k.on_again_after_s for k in of])


async def _kill_workers(bench: Bench, description: str, *, is_demo: bool = True) -> list[Kill]:
    options = StackOptions(
        model=DEMO_MODEL if is_demo else BENCH_MODEL,
        workers=2,
        slots=STREAMS,
        # One computes at a time: each has what a worker has on a machine of its own.
        threads=usable_cores(),
        kv_cells=_CELLS,
        has_disk_tier=True,  # as `inferctl up` has one
        restarts=False,
    )
    kills: list[Kill] = []
    async with ground(options) as on:
        requests = (
            _countdowns(on) if is_demo else [on.request(max_tokens=_MAX_TOKENS) for _ in range(STREAMS)]
        )
        expected = await _undisturbed(on, requests)
        for number in bench.steps(description, bench.plan.kills):
            victim, spare = f"worker-{number % 2}", f"worker-{1 - number % 2}"
            at_token = _DEMO_KILLED_AT if is_demo else _KILLED_AT
            kills.append(await _kill_worker(on, requests, expected, victim, spare, at_token))
            bench.say(f"{victim} killed: longest gap {kills[-1].longest_gap_s:.2f} s")
            await on.stack.restart(victim)
            await on.until_scheduler(lambda s: ready_workers(s) == {"worker-0", "worker-1"})
            await on.until_idle()
    return kills


def _countdowns(on: Ground) -> list[Request]:
    return [countdown(on.model, start, end) for start in _DEMO_STARTS for end in (1, 2)]


async def _undisturbed(on: Ground, requests: Sequence[Request]) -> list[Stream]:
    streams = await ends([on.caller.send(request) for request in requests], _LIMIT_S)
    if failed := failures(streams):
        raise LabError(f"a request failed though nothing was killed: {failed[0]}")
    return streams


async def _kill_worker(
    on: Ground,
    requests: Sequence[Request],
    expected: Sequence[Stream],
    victim: str,
    spare: str,
    at_token: int,
) -> Kill:
    """Have all run on the victim, by draining the spare one until they do, and kill it.

    Raises:
        LabError: not all of them had to go on elsewhere.
    """
    async for progress in on.admin.drain(spare):
        if progress.is_drained:
            break
    await on.until_scheduler(lambda s: ready_workers(s) == {victim})
    underway = [on.caller.send(request) for request in requests]
    streams = [one.stream for one in underway]
    await until(lambda: all(s.tokens >= at_token or s.ended_s for s in streams))
    await on.admin.undrain(spare)
    await on.until_scheduler(lambda s: spare in ready_workers(s))
    at_s = time.perf_counter()
    await on.stack.kill(victim)
    await on.until_scheduler(lambda s: victim not in ready_workers(s))
    noticed_s = time.perf_counter() - at_s
    await ends(underway, _LIMIT_S)
    moved = sum(s.workers[:2] == [victim, spare] for s in streams if not s.has_failed)
    if moved < len(streams) - len(failures(streams)):
        raise LabError(
            f"{victim} was killed too late: only {moved} of {len(streams)} streams still ran on it"
        )
    return Kill(streams, at_s, noticed_s, changed(streams, expected))


async def leader(bench: Bench) -> AsyncIterator[Reading]:
    """The leading one of two schedulers killed, while streams run and requests come."""
    options = StackOptions(
        model=BENCH_MODEL, schedulers=2, slots=2 * STREAMS, kv_cells=2 * _CELLS, restarts=False
    )
    kills: list[Kill] = []
    ratios: list[float] = []
    admissions: list[float] = []
    gaps_ms: list[dict[str, float]] = []
    async with ground(options) as on:
        await on.caller.ask(on.request())
        for _ in bench.steps("leading scheduler killed", bench.plan.kills):
            name = await _leader(on)
            long = [on.caller.send(on.request(max_tokens=_LONG_TOKENS)) for _ in range(STREAMS)]
            kill, short = await _kill_under_load(on, name, long)
            watched = Window(kill.at_s, kill.at_s + _WATCHED_S)
            before = Window(kill.at_s - _WATCHED_S, kill.at_s)
            running = [one.stream for one in long]
            median_s = median_gap_s(running, before)
            gaps_ms.append(
                {
                    "median_before": round(median_s * 1000, 2),
                    "longest_before": round(longest_gap_s(running, before) * 1000, 2),
                    "longest_after": round(longest_gap_s(running, watched) * 1000, 2),
                }
            )
            ratios.append(longest_gap_s(running, watched) / median_s)
            admissions.append(first_admission_s(short, kill.at_s))
            kills.append(kill)
            bench.say(f"{name} killed: a new request has its first token after {admissions[-1]:.2f} s")
            await on.stack.restart(name)
            await on.until_idle()
    yield _count("leader_killed_failed", [len(k.failed) for k in kills], why=_why(kills))
    yield _count("leader_killed_lost_or_doubled", [k.lost_or_doubled for k in kills])
    yield reading("leader_killed_gap_ratio", max(ratios), each=ratios, gaps_ms=gaps_ms)
    yield reading("leader_killed_admission_s", max(admissions), each=admissions)


async def _kill_under_load(on: Ground, name: str, long: list[Underway]) -> tuple[Kill, list[Stream]]:
    def short_request(_: int) -> Request:
        return on.request(prompt_tokens=_SHORT_PROMPT, max_tokens=_SHORT_TOKENS)

    async with Load(on.caller, short_request, _SHORT_CLIENTS) as load:
        await until(lambda: all(one.stream.tokens for one in long))
        await asyncio.sleep(_WATCHED_S)
        at_s = time.perf_counter()
        await on.stack.kill(name)
        # All other clients wait for an answer: one has to ask anew.
        anew = on.caller.send(short_request(0))
        await asyncio.sleep(_WATCHED_S)
        if any(one.stream.finish_reason for one in long):
            raise LabError("a stream ended too early to tell whether it notices the kill")
        await load.finish(_LIMIT_S)
    short = [*load.streams, anew.stream]
    await ends([*long, anew], _LIMIT_S)
    return Kill([*(one.stream for one in long), *short], at_s), short


async def _leader(on: Ground) -> str:
    names: list[str] = []

    def is_led(status: scheduler_pb2.SchedulerStatus) -> bool:
        names.append(status.leader)
        return bool(status.leader)

    await on.until_scheduler(is_led)
    return names[-1]


async def nats(bench: Bench) -> AsyncIterator[Reading]:
    """nats-server killed and started again while requests run and wait."""
    options = StackOptions(model=BENCH_MODEL, slots=STREAMS, kv_cells=_CELLS, restarts=False)
    kills: list[Kill] = []
    async with ground(options) as on:
        await on.caller.ask(on.request())
        for _ in bench.steps("nats-server restarted", bench.plan.kills):
            kills.append(await _restart_nats(on))
            bench.say(f"nats-server restarted: longest gap {kills[-1].longest_gap_s:.2f} s")
            await on.until_idle()
    queued = [[s for s in k.streams if _was_queued(s, k.at_s)] for k in kills]
    running = [[s for s in k.streams if not _was_queued(s, k.at_s)] for k in kills]
    for name, groups in (("queued", queued), ("running", running)):
        whys = [failures(group) for group in groups]
        numbers = [len(group) for group in groups]
        key = f"nats_restarted_failed_{name}"
        yield _count(
            key, [len(why) for why in whys], of=numbers, why=sorted({w for why in whys for w in why})
        )
    yield _count("nats_restarted_lost_or_doubled", [k.lost_or_doubled for k in kills])
    each = [k.longest_gap_s for k in kills]
    yield reading("nats_restarted_longest_gap_s", max(each), each=each)


async def _restart_nats(on: Ground) -> Kill:
    underway = [on.caller.send(on.request(max_tokens=_NATS_TOKENS)) for _ in range(_NATS_REQUESTS)]
    streams = [one.stream for one in underway]
    await on.until_scheduler(lambda s: s.running == STREAMS and s.queued == _NATS_REQUESTS - STREAMS)
    await until(lambda: sum(s.tokens > 0 for s in streams) >= STREAMS)
    at_s = time.perf_counter()
    await on.stack.restart("nats")
    await ends(underway, _LIMIT_S)
    return Kill(streams, at_s)


def _was_queued(stream: Stream, at_s: float) -> bool:
    """Return whether it had no token by then."""
    return not stream.arrivals_s or stream.arrivals_s[0] > at_s


def _count(key: str, each: list[int], **raw: object) -> Reading:
    """Count what is to be none, in all kills together."""
    return reading(key, float(sum(each)), each=each, **raw)


def _why(kills: Sequence[Kill]) -> list[str]:
    return sorted({why for kill in kills for why in kill.failed})
