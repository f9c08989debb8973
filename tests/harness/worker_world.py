"""A whole worker in one thread: its intake, table, emitter and engine, over a cache that checks every call.

Messages between the worker and its engine wait until they are let through, so that a test can have them
cross in any way.
"""

from __future__ import annotations

import itertools
import math
import time
import zlib
from collections import Counter as RunCounter
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import numpy as np
from harness.kv_states import IDENTITY
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from inferflux.common.contract import subjects
from inferflux.common.tracing import OFF
from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.kv.prefix_sharing import FULL, PrefixSharing, Sharing
from inferflux.worker.engine.llama.context import Interrupted, IsInterrupted
from inferflux.worker.engine.llama.trials import Timing
from inferflux.worker.engine.plan.budget import Worth
from inferflux.worker.engine.plan.planner import ScheduledTokens, StepPlan
from inferflux.worker.engine.plan.speculation import Row
from inferflux.worker.engine.step.clock import Clock
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.step.shell import Shell
from inferflux.worker.engine.tiers.disk import Disk
from inferflux.worker.engine.tiers.tiers import Tiers
from inferflux.worker.files.model_file import ModelFile
from inferflux.worker.host.heartbeat import Heartbeat
from inferflux.worker.host.intake import Intake
from inferflux.worker.metrics import WorkerMetrics
from inferflux.worker.model.emit import Emitter
from inferflux.worker.model.events import WorkerEvents
from inferflux.worker.model.model_host import ModelHost
from inferflux.worker.model.model_options import ModelOptions, Shared
from inferflux.worker.model.spans import WorkerSpans
from inferflux.worker.model.worker_state import WorkerState

VOCABULARY = 40
CONTEXT = 128


NextToken = Callable[[list[int]], int]
E = TypeVar("E", bound=Shell[Any])


def next_token(tokens: list[int]) -> int:
    """What the model of `CheckingCache` says after `tokens`."""
    return zlib.crc32(bytes(tokens)) % VOCABULARY


def answer_to(prompt: list[int], n: int) -> list[int]:
    """The first `n` tokens that it answers to a prompt."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + n:
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def repetitive(tokens: list[int]) -> int:
    """What a model says that goes on after two tokens as it did before, most of the time."""
    return zlib.crc32(bytes([*tokens[-2:], len(tokens) // 23])) % 3


class CheckingCache:
    """A backend whose next token depends on all a sequence holds, and which takes no wrong step."""

    context_length = CONTEXT
    batch_tokens = 32
    shortest_suffix = 0
    adapter_switches = 0

    def __init__(
        self,
        *,
        cells: int,
        sequences: int,
        prefill_cells: int,
        sharing: PrefixSharing = FULL,
        has_long_steps: bool = False,
        next_token: NextToken = next_token,
    ) -> None:
        self.cells = cells
        self._next_token = next_token
        self.prefill_cells = prefill_cells
        self.long_step_tokens = self.batch_tokens if has_long_steps else 0
        self.long_mixed_tokens = self.long_step_tokens
        # Seconds of a token in the prefill context, by the warm-up: where there are long steps, the others
        # are shorter than a batch.
        self._prefill_token_s = 0.01 if has_long_steps else 0.0006
        # The next long step is given up.
        self.is_interrupted = False
        self.sequences = sequences
        self.by_seq_id: dict[int, list[int]] = {}
        self.prefill: dict[int, list[int]] = {}
        self.loses_states = False
        self.move_cost = None
        self.sharing_error = ""
        self.sharing = sharing
        self.speculation_error = "" if sharing.is_divisible else "tokens cannot be removed"
        self.verified_rows = 12
        self.cell_s = 0.0
        self.spare_id: int | None = sequences if sharing.is_divisible else None
        # Which cells each sequence has: an object stands for each.
        self._cells: dict[int, list[object]] = {}
        # The first position that each still has in layers with a sliding window.
        self._first: RunCounter[int] = RunCounter()
        self.vocab = SimpleNamespace(
            size=VOCABULARY,
            eog=frozenset[int](),
            piece=lambda token: bytes([65 + token]),
            piece_text=lambda token: chr(65 + token),
        )

    @property
    def used(self) -> int:
        return len({cell for cells in self._cells.values() for cell in cells})

    def warm_up(self) -> list[Timing]:
        timings = [Timing(16, 0, 0.01), Timing(32, 0, 0.02), Timing(0, 1, 0.005)]
        return timings + [Timing(n, 0, self._prefill_token_s * n, in_prefill_context=True) for n in (16, 32)]

    def row_times(self) -> dict[int, float]:
        return {1: 0.005, self.verified_rows: 0.02}

    def decode(self, plan: StepPlan, _is_interrupted: IsInterrupted) -> NDArray[np.float32]:
        assert plan.parts, "an empty step"
        assert plan.n_tokens <= self.batch_tokens
        if plan.is_long and self.is_interrupted:
            self._give_up(plan)
        rows = []
        for part in plan.parts:
            sequence = part.sequence
            assert 0 <= sequence.seq_id < self.sequences
            held = self.by_seq_id.setdefault(sequence.seq_id, [])
            assert len(held) == sequence.position, "the cache does not hold what the sequence thinks"
            assert self._first[sequence.seq_id] <= max(0, len(held) - self.sharing.window + 1)
            assert part.n > 0
            held += sequence.tokens[sequence.position : sequence.position + part.n].tolist()
            self._cells.setdefault(sequence.seq_id, []).extend(object() for _ in range(part.n))
            self._check_prefill_context(part, in_prefill_context=plan.in_prefill_context)
            assert part.n_logits in (0, 1 + part.n_drafted)
            for unseen in reversed(range(part.n_logits)):
                row = np.zeros(VOCABULARY, np.float32)
                row[self._next_token(held[: len(held) - unseen])] = 1.0
                rows.append(row)
        assert not any(p.n_drafted for p in plan.parts) or len(rows) <= self.verified_rows
        assert self.used <= self.cells, "the step did not fit"
        if self.sharing.kind is Sharing.WINDOW:
            self._reuse_stale_cells()
        return np.array(rows, np.float32).reshape(-1, VOCABULARY)

    def _give_up(self, plan: StepPlan) -> None:
        """The prefill context has by then what the main one has of these sequences."""
        self.is_interrupted = False
        for part in plan.parts:
            seq_id = part.sequence.seq_id
            self.prefill.setdefault(seq_id, list(self.by_seq_id.get(seq_id, ())))
        raise Interrupted

    def _reuse_stale_cells(self) -> None:
        """Cells that one sequence has, and whose tokens it will not look at again, go at once."""
        owners = RunCounter(cell for cells in self._cells.values() for cell in cells)
        for seq_id, cells in self._cells.items():
            stale = range(self._first[seq_id], max(0, len(cells) - self.sharing.window + 1))
            gone = [position for position in stale if owners[cells[position]] == 1]
            self._first[seq_id] = gone[-1] + 1 if gone else self._first[seq_id]

    def positions(self, seq_id: int) -> tuple[int, int]:
        """As llama.cpp says them: those that a sequence has in every layer."""
        last = len(self.by_seq_id.get(seq_id, ())) - 1
        if last < 0:
            return -1, -1
        return (last if self.sharing.kind is Sharing.CHECKPOINTS else self._first[seq_id], last)

    def _check_prefill_context(self, part: ScheduledTokens, *, in_prefill_context: bool) -> None:
        sequence = part.sequence
        assert sequence.in_prefill_context == in_prefill_context
        assert in_prefill_context or sequence.seq_id not in self.prefill
        if in_prefill_context:
            before = self.by_seq_id[sequence.seq_id][: sequence.position]
            held = self.prefill.setdefault(sequence.seq_id, before)
            assert len(held) == sequence.position, "the main context went on without it"
            held += sequence.tokens[sequence.position : sequence.position + part.n].tolist()
            assert sum(map(len, self.prefill.values())) <= self.prefill_cells

    def compact(self) -> float:
        raise AssertionError("nothing is lost to holes")

    def forget_prefill(self, seq_id: int) -> None:
        del self.prefill[seq_id]

    def forget(self, seq_id: int, position: int = 0) -> None:
        assert self.sharing.is_divisible or not position
        if not position:
            del self._first[seq_id]
        for held in (self.by_seq_id, self._cells):
            if position:
                del held[seq_id][position:]
            else:
                held.pop(seq_id, None)

    def share(self, source: int, seq_id: int, cells: int) -> None:
        assert not self.by_seq_id.get(seq_id)
        assert 0 < cells <= len(self.by_seq_id[source])
        assert self.sharing.can_begin(*self.positions(source), cells)
        self._first[seq_id] = self._first[source]
        self.by_seq_id[seq_id] = self.by_seq_id[source][:cells]
        self._cells[seq_id] = self._cells[source][:cells]

    def state_size(self, seq_id: int) -> int:
        return len(self.by_seq_id[seq_id])

    def copy_out(self, seq_id: int, into: NDArray[np.uint8]) -> bool:
        if self.loses_states:
            return False
        into[:] = self.by_seq_id[seq_id]
        return True

    def copy_part_out(
        self, seq_id: int, first: int, end: int, room: Callable[[int], NDArray[np.uint8]]
    ) -> bool:
        assert self.spare_id is not None
        held = self.by_seq_id[seq_id]
        assert 0 <= first < end <= len(held)
        into = room(end - first)
        into[:] = held[first:end]
        return not self.loses_states

    def append(self, seq_id: int, state: NDArray[np.uint8]) -> bool:
        assert self.spare_id is not None
        assert self.by_seq_id[seq_id]
        assert self.used + state.shape[0] <= self.cells
        if self.loses_states:
            return False
        self.by_seq_id[seq_id] = [*self.by_seq_id[seq_id], *state.tolist()]
        self._cells[seq_id] = self._cells[seq_id] + [object() for _ in range(state.shape[0])]
        return True

    def first_positions(self, state: NDArray[np.uint8], n: int) -> NDArray[np.uint8] | None:
        assert self.sharing.is_divisible
        return state[:n]

    def has_positions(self, state: NDArray[np.uint8], first: int, end: int) -> bool:
        return bool(state.shape[0] == end - first)

    def copy_in(self, seq_id: int, state: NDArray[np.uint8]) -> bool:
        assert not self.by_seq_id.get(seq_id)
        assert self.used + state.shape[0] <= self.cells
        if self.loses_states:
            return False
        self.by_seq_id[seq_id] = state.tolist()
        if self.sharing.kind is Sharing.WINDOW:
            self._first[seq_id] = max(0, state.shape[0] - self.sharing.window)
        self._cells[seq_id] = [object() for _ in range(state.shape[0])]
        return True


class _Bus:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []

    async def publish(self, subject: str, payload: bytes) -> None:
        self.published.append((subject, payload))


@dataclass
class _Letter:
    """A message as `Intake` gets it."""

    data: bytes
    answer: bytes = b""
    subject: str = ""

    async def respond(self, payload: bytes) -> None:
        self.answer = payload


@dataclass
class ScriptedEngine:
    """What a model has in place of an engine process: it keeps commands, and reports what a test says."""

    sent: deque[engine_pb2.EngineCommand] = field(default_factory=deque)
    killed_for: str = ""
    pid: int | None = None

    def send(self, command: engine_pb2.EngineCommand) -> None:
        self.sent.append(engine_pb2.EngineCommand.FromString(command.SerializeToString()))

    def kill(self, why: str) -> None:
        self.killed_for = why

    async def run(self) -> None: ...

    async def stop(self) -> None: ...


class CachedSequences:
    """What the engine says it has cached, by entry."""

    def __init__(self) -> None:
        self.entries: dict[int, engine_pb2.CachedPrefix] = {}

    def take_in(self, cached: Iterable[engine_pb2.CachedPrefix]) -> None:
        for each in cached:
            self.entries.pop(each.entry, None)
            if each.token_ids:
                self.entries[each.entry] = each

    def clear(self) -> None:
        self.entries.clear()

    async def rewrite(self) -> None: ...


def model_host(
    bus: object,
    *,
    name: str = "m",
    state: WorkerState | None = None,
    emitter: Emitter | None = None,
    metrics: WorkerMetrics | None = None,
    on_change: Callable[[], Awaitable[None]] | None = None,
    cached: CachedSequences | None = None,
) -> tuple[ModelHost, ScriptedEngine]:
    """A model without an engine process. What is not given is the model's own."""
    engine = ScriptedEngine()

    async def nothing() -> None: ...

    def kept() -> dict[str, list[bytes]]:
        return made.residents.kept_chunks(0.0)

    metrics = metrics or WorkerMetrics(CollectorRegistry())
    cached = cached or CachedSequences()
    made = ModelHost(
        ModelOptions(name, engine_pb2.EngineConfig(), load_limit_s=60.0, stuck_s=60.0),
        ModelFile(Path(name), f"digest of {name}", 1, "llama", name, CONTEXT, b""),
        metrics.of(name),
        Shared(
            emitter or Emitter(bus, kept),  # type: ignore[arg-type]
            WorkerEvents(bus, state or WorkerState("w", "i")),  # type: ignore[arg-type]
            WorkerSpans(OFF, "w"),
            on_change or nothing,
        ),
        cached,
        make_engine=lambda _on_report, _on_death: engine,
    )
    return made, engine


class EagerBudget:
    """Every row is worth its time."""

    def rows_worth(self, _n_decoding: int, rows: Iterable[Row], most: int) -> Worth:
        return Worth(list(itertools.islice(rows, most)), gain=math.inf, tokens_s=0.0, least=0.0)

    def least_gain(self, _n_decoding: int) -> float:
        return 0.0

    def copying_s(self, _n_decoding: int) -> float:
        return math.inf

    def token_s(self, _n_decoding: int) -> float:
        return math.inf


class WorkerHalves(Generic[E]):
    """The two halves of a worker, and what is under way between them.

    Args:
        engine: its own half; its model is called `m`.
    """

    def __init__(self, engine: E, *, slots: int, cells: int) -> None:
        self.engine = engine
        # The latest run of each request that was resumed.
        self.runs: RunCounter[str] = RunCounter()
        self.reports: deque[engine_pb2.StepReport] = deque()
        self._bus = _Bus()
        self.state = WorkerState("w", "i")
        metrics = WorkerMetrics(CollectorRegistry())
        self.bad = metrics.bad
        self.cached = CachedSequences()
        self.model, self._host = model_host(self._bus, state=self.state, metrics=metrics, cached=self.cached)
        self.table = self.model.residents
        self.heartbeat = Heartbeat(self._bus, self.state, self.model)  # type: ignore[arg-type]
        self._intake = Intake(self._bus, self.state, self.model, self.heartbeat, self.bad)  # type: ignore[arg-type]
        ready = engine_pb2.EngineReady(
            slots=slots,
            kv_cells=cells,
            context_length=CONTEXT,
            vocabulary_size=VOCABULARY,
        )
        _finish(self.model.on_report(engine_pb2.EngineReport(ready=ready)))

    def submit(
        self,
        *items: worker_pb2.BatchItem,
        phase: worker_pb2.Phase.ValueType = worker_pb2.PHASE_PREFILL,
        deschedule: tuple[worker_pb2.Deschedule, ...] = (),
        term: int = 0,
    ) -> worker_pb2.BatchAccepted:
        batch = worker_pb2.RequestBatch(
            incarnation="i", phase=phase, items=items, deschedule=deschedule, term=term
        )
        letter = _Letter(batch.SerializeToString())
        _finish(self._intake.on_batch(letter))  # type: ignore[arg-type]
        return worker_pb2.BatchAccepted.FromString(letter.answer)

    def command(self, command: worker_pb2.WorkerCommand) -> None:
        _finish(self._intake.on_command(_Letter(command.SerializeToString())))  # type: ignore[arg-type]

    def notice(self, notice: worker_pb2.LeaderNotice) -> None:
        _finish(self._intake.on_leader(_Letter(notice.SerializeToString())))  # type: ignore[arg-type]

    def cancel(self, request_id: str, attempt_id: str = "") -> None:
        notice = scheduler_pb2.CancelNotice(tenant="t", request_id=request_id, attempt_id=attempt_id)
        subject = subjects.cancel("t", request_id)
        _finish(self._intake.on_cancel(_Letter(notice.SerializeToString(), subject=subject)))  # type: ignore[arg-type]

    def step(self) -> None:
        """The engine takes every command that is under way, makes a step and reports."""
        while self._host.sent:
            self.engine.obey(self._host.sent.popleft())
        self.engine.step()
        self._take_report()

    def _take_report(self) -> None:
        report = self.engine.take_report()
        if report is not None:
            self.reports.append(engine_pb2.StepReport.FromString(report.step.SerializeToString()))

    def take_report(self) -> None:
        """The worker takes the oldest report that is under way."""
        if self.reports:
            report = engine_pb2.EngineReport(step=self.reports.popleft())
            _finish(self.model.on_report(report))

    def settle(self) -> None:
        """One step, and everything that is under way arrives."""
        self.step()
        while self.reports:
            self.take_report()

    def status(self) -> scheduler_pb2.WorkerStatus:
        return self.heartbeat.status(0.0)

    def events(self) -> list[scheduler_pb2.WorkerEvent]:
        return [
            scheduler_pb2.WorkerEvent.FromString(data)
            for subject, data in self._bus.published
            if subject.endswith(".events")
        ]

    def heartbeats(self) -> int:
        return sum(subject.endswith(".status") for subject, _ in self._bus.published)

    def emitted(self, request_id: str) -> list[int]:
        """The tokens that a request has got."""
        return [token for chunk in self.chunks(request_id) for token in chunk.token_ids]

    def chunks(self, request_id: str) -> list[tokens_pb2.TokenChunk]:
        return [
            tokens_pb2.TokenChunk.FromString(data)
            for subject, data in self._bus.published
            if subject.endswith(f".tokens.t.{request_id}")
        ]


class WorkerWorld(WorkerHalves[Engine]):
    """A worker with llama.cpp's engine, over a cache that checks every call."""

    def __init__(
        self,
        *,
        slots: int,
        sequences: int,
        cells: int,
        host_bytes: int,
        prefill_cells: int = 0,
        disk: Disk | None = None,
        disk_bytes: int = 0,
        has_prefix_cache: bool = True,
        disk_prompt_tokens: int = 0,
        sharing: PrefixSharing = FULL,
        has_long_steps: bool = False,
        next_token: NextToken = next_token,
        speculation: generation_pb2.Speculation.ValueType = generation_pb2.SPECULATION_OFF,
    ) -> None:
        # How far the engine's clocks are ahead.
        self.ahead_s = 0.0
        self.cache = CheckingCache(
            cells=cells,
            sequences=sequences,
            prefill_cells=prefill_cells,
            sharing=sharing,
            has_long_steps=has_long_steps,
            next_token=next_token,
        )
        engine = Engine(
            self.cache,  # type: ignore[arg-type]
            worker_id="w",
            max_itl_factor=3.0,
            step_limit_s=0.2,
            tiers=Tiers(
                IDENTITY,
                host_bytes=host_bytes,
                disk=disk,
                disk_bytes=disk_bytes,
                is_divisible=sharing.is_divisible,
            ),
            has_prefix_cache=has_prefix_cache,
            disk_prompt_tokens=disk_prompt_tokens,
            speculation=speculation,
            clock=Clock(lambda: time.monotonic() + self.ahead_s, lambda: time.time() + self.ahead_s),
        )
        # How fast this machine is does not decide what is drafted.
        engine._drafting._budget = EagerBudget()  # type: ignore[assignment]
        super().__init__(engine, slots=slots, cells=cells)

    def step(self) -> None:
        super().step()
        memory = self.engine._memory
        assert memory.ledger.used == self.cache.used, "the ledger is wrong"
        assert memory.repair(self.engine.residents.values()) == []

    def lose(self, seq_id: int) -> None:
        """The cache loses what a sequence has, and the engine checks its ledger."""
        if seq_id in self.cache.prefill or not self.cache.by_seq_id.get(seq_id):
            return
        self.cache.forget(seq_id)
        self.engine._check_times.stepped()
        self.ahead_s += 3600
        assert self.engine.check_ledger()
        self._take_report()


def _finish(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never really waits."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")
