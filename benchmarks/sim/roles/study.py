"""Effective capacity and hit rates of fleets with and without roles, on a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.sim.figures import Waits, waits
from benchmarks.sim.worker import WorkerModel
from benchmarks.sim.world import START_S
from benchmarks.traces.replay import replay
from benchmarks.traces.request import Ideal, TraceRequest, ideal

from .links import Network
from .world import Met, RolesSetup, RolesWorld

# A request is served well if its first token comes this soon, and the longest tenth of the gaps between its
# tokens are this long in the mean: Mooncake's limits. A fleet can do a rate if this part is, and
# first tokens come as fast as requests do: a queue that grows breaks the limits later.
FIRST_TOKEN_S, SLOW_GAP_S = 30.0, 0.2
SERVED_WELL, KEPT_UP = 0.9, 0.97
# Requests of the first seconds are not judged: fleets begin empty.
_WARM_PART = 0.2
# Rates that are tried are this far apart in the end, and at first.
_FINE, _COARSE = 1.04, 1.3
_MOST_TRIES = 12

# A 70B model in 16 bits on eight A800, as in Mooncake's paper. Assumed, not measured: weights and keys are
# read at 11 TB/s, which makes 25 ms for a step with its overhead, and 0.4 ms more for each sequence of
# 12,000 tokens; a prompt is computed at 5,000 tokens/s whatever its length; 1,000,000 tokens of state fit
# beside the weights, 320 KiB each. A step has 512 tokens of prompts beside decodes, and 2,048 without.
A800 = WorkerModel(
    slots=64,
    sequences=128,
    kv_cells=1_000_000,
    context_length=131_072,
    swap_cells=0,
    step_s=0.025,
    sequence_s=0.0004,
    prefill_tokens_per_s=5000.0,
    prefill_budget=512,
    lone_prefill_budget=2048,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A fleet: which part of its workers computes prompts alone, and how fast its links are in GB/s.

    Attributes:
        prefill: 0: all are unified.
        gb_per_s: 0: no worker fetches anything from another.
        chunk: tokens of prompts in a step beside decodes.
    """

    prefill: float = 0.0
    gb_per_s: float = 0.0
    chunk: int = A800.prefill_budget

    @property
    def name(self) -> str:
        return f"{self.prefill:.0%} prefill" if self.prefill else "unified"

    def setup(self, workers: int) -> RolesSetup:
        return RolesSetup(
            workers=workers,
            model=replace(A800, prefill_budget=self.chunk),
            has_hints=True,
            prefill=round(workers * self.prefill),
            network=Network(bytes_per_s=self.gb_per_s * 1e9) if self.gb_per_s else None,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of one run.

    Attributes:
        served_well: part of the requests that were within both limits.
        kept_up: first tokens ÷ requests, in the second half.
        first_token: seconds from arrival to the first token.
        slow_gap: of each request, the mean of the longest tenth of gaps between tokens, in seconds.
        hit_rate: part of the prompt tokens that no worker computed.
        ideal: of the same requests in their order, with a cache that loses nothing.
        of_memory: the same with one cache of as many tokens as all workers have.
        moved: requests that went on at another worker.
        sent_gb: of state, and how many fetches came to nothing.
    """

    shape: Shape
    workers: int
    rate: float
    requests: int
    served_well: float
    kept_up: float
    first_token: Waits
    slow_gap: Waits
    hit_rate: float
    ideal: Ideal
    of_memory: Ideal
    moved: int = 0
    sent_gb: float = 0.0
    failed_fetches: int = 0

    @property
    def is_done(self) -> bool:
        """True if the fleet can do this rate."""
        return self.served_well >= SERVED_WELL and self.kept_up >= KEPT_UP

    @property
    def part_of_ideal(self) -> float:
        return self.hit_rate / self.ideal.tokens if self.ideal.tokens else 0.0

    @property
    def part_of_memory(self) -> float:
        return self.hit_rate / self.of_memory.tokens if self.of_memory.tokens else 0.0


@dataclass(slots=True)
class Study:
    """Runs of one trace.

    Args:
        trace: in order of time.
        seconds: of simulated time that a run has.
        speed: times as fast as the trace each of its copies runs.
        slow_gap_s: limit of the longest tenth of gaps.
        on_progress: told of what runs, and how far it is: 0 to 1.
    """

    trace: Sequence[TraceRequest]
    seconds: float
    speed: float = 4.0
    slow_gap_s: float = SLOW_GAP_S
    on_progress: Callable[[str, float], None] = lambda _what, _part: None
    runs: list[Run] = field(default_factory=list)

    def run(self, shape: Shape, workers: int, rate: float) -> Run:
        """One run at a rate, in requests per second of the whole fleet."""
        requests = replay(self.trace, rate=rate, speed=self.speed, seconds=self.seconds)
        return self._run(shape, workers, rate, requests, self.seconds)

    def run_whole(self, shape: Shape, workers: int) -> Run:
        """The whole trace, once and as fast as it was."""
        first_s = self.trace[0].at_s
        requests = [replace(one, at_s=one.at_s - first_s) for one in self.trace]
        seconds = requests[-1].at_s + 2 * FIRST_TOKEN_S
        return self._run(shape, workers, len(requests) / requests[-1].at_s, requests, seconds)

    def capacity(self, shape: Shape, workers: int, guess: float) -> Run | None:
        """The run at the largest rate that a fleet can do, to 4 %; None if it can do none that is tried.

        Args:
            guess: a rate that is not far off, in requests per second of the whole fleet.
        """
        best: Run | None = None
        low, high, rate = 0.0, 0.0, guess
        for _ in range(_MOST_TRIES):
            run = self.run(shape, workers, rate)
            if run.is_done:
                best, low = run, rate
            else:
                high = rate
            if low and high and high / low <= _FINE:
                break
            rate = (low * high) ** 0.5 if low and high else rate * _COARSE if low else rate / _COARSE
        return best

    def _run(
        self, shape: Shape, workers: int, rate: float, requests: Iterable[TraceRequest], seconds: float
    ) -> Run:
        what = f"{shape.name}, {workers} workers, {rate:.1f}/s"

        def on_second(now: float) -> bool:
            self.on_progress(what, now / seconds)
            return False

        self.on_progress(what, 0.0)
        world = RolesWorld(shape.setup(workers), requests, on_second=on_second).run_for(seconds)
        run = _figures(shape, rate, world, seconds, self.slow_gap_s)
        self.runs.append(run)
        return run


def _figures(shape: Shape, rate: float, world: RolesWorld, seconds: float, slow_gap_s: float) -> Run:
    came = [met for met in world.met.values() if met.arrival.at_s - START_S < seconds]
    begun = [met for met in came if met.arrival.first_token_s is not None]
    judged = [met for met in came if met.arrival.at_s >= START_S + _WARM_PART * seconds]
    verdicts = [good for met in judged if (good := _is_served_well(met, world.now, slow_gap_s)) is not None]
    half_s = START_S + seconds / 2
    transfers = [worker.status().kv_transfers for worker in world.ends.values()]
    computed = sum(met.computed for met in begun)
    prompts = sum(met.request.prompt_tokens for met in begun)
    return Run(
        shape=shape,
        workers=len(world.workers),
        rate=rate,
        requests=len(came),
        served_well=sum(verdicts) / max(1, len(verdicts)),
        kept_up=sum((met.arrival.first_token_s or 0.0) >= half_s for met in begun)
        / max(1, sum(met.arrival.at_s >= half_s for met in came)),
        first_token=waits(wait for met in judged if (wait := met.arrival.first_token_wait_s) is not None),
        slow_gap=waits(met.slow_gap_s for met in judged if met.gaps),
        hit_rate=1 - computed / prompts if prompts else 0.0,
        ideal=ideal(met.request for met in begun),
        of_memory=ideal((met.request for met in begun), most_tokens=len(world.workers) * A800.kv_cells),
        moved=sum(met.arrival.epoch > 1 for met in begun),
        sent_gb=sum(told.bytes for told in transfers) / 1e9,
        failed_fetches=sum(told.failed for told in transfers),
    )


def _is_served_well(met: Met, now: float, slow_gap_s: float) -> bool | None:
    """None while that is not known."""
    wait_s = met.arrival.first_token_wait_s
    if wait_s is None:
        return False if now - met.arrival.at_s > FIRST_TOKEN_S else None
    return wait_s <= FIRST_TOKEN_S and met.slow_gap_s <= slow_gap_s
