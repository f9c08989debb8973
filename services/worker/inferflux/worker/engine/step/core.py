"""The engine's step: take up what arrived, plan, decode, sample, report."""

from __future__ import annotations

from collections.abc import Collection

from inferflux.common.contract.errors import InferFluxError
from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.constraints.constraints import Constraints
from inferflux.worker.engine.llama.context import Interrupted
from inferflux.worker.engine.llama.draft_model import DraftModel
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.media.images import Images
from inferflux.worker.engine.memory.ledger_check import CheckTimes
from inferflux.worker.engine.memory.memory import Memory
from inferflux.worker.engine.memory.saved import SavedStates
from inferflux.worker.engine.plan.building import sequence_of
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.plan.speculation import OFF
from inferflux.worker.engine.tiers.tiers import Tiers

from . import chunks
from .awaited import AwaitedAdapters, AwaitedBreakers, AwaitedImages
from .clock import Clock
from .commands import Arrived, none_arrived
from .constrained_answers import ConstrainedAnswers
from .determinism import Determinism
from .drafting import Drafting
from .lower_tiers import MOST_TOLD, LowerTiers
from .parts import Outcome, Part
from .pieces import Pieces
from .planning import Planning
from .sampled import Sampled
from .shell import Shell
from .step_times import StepTimes

# While an idle engine finds the files of an earlier one, they are told of this often.
_SCAN_POLL_S = 0.02
# While all that runs is read from disk, or waits for its constraint or its check, commands are looked at this
# often.
_POLL_S = 0.001


class Engine(Shell[Sequence]):
    """Runs every sequence that has a slot, one token each per step, and keeps those that wait to resume.

    Args:
        backend: the loaded model.
        worker_id: named in `started` events.
        max_itl_factor, step_limit_s: see `StepBudget`.
        tiers: where sequences go that have to leave the KV cache.
        constraints: compiles those of answers; without one, none are taken.
        has_prefix_cache: whether prefixes are kept and shared, where the model can.
        disk_prompt_tokens: see `Memory`.
        has_compaction: whether filled KV cells are moved together where that pays.
        speculation: where drafts come from for requests that leave it open.
        draft_model: drafts for those that ask for one.
        is_deterministic: whether requests that leave it open are.
        images: encodes those of prompts; without it, none are taken.
        clock: the system's if none is given.
        arrived: gives the commands that came since it was asked last; they are obeyed after the step. It is
            asked often while a long step is computed.

    Attributes:
        pieces: state that leaves and comes so.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        worker_id: str,
        max_itl_factor: float,
        step_limit_s: float,
        tiers: Tiers[Sequence],
        constraints: Constraints | None = None,
        has_prefix_cache: bool = True,
        disk_prompt_tokens: int = 0,
        has_compaction: bool = True,
        speculation: generation_pb2.Speculation.ValueType = OFF,
        draft_model: DraftModel | None = None,
        is_deterministic: bool = False,
        images: Images | None = None,
        clock: Clock | None = None,
        arrived: Arrived = none_arrived,
    ) -> None:
        super().__init__(chunks, "generating", clock)
        self._backend = backend
        self._tiers = tiers
        self._saved = SavedStates(backend, tiers, self._clock.monotonic_s, longest_copy_s=step_limit_s)
        self._times = StepTimes(
            backend, tiers.rates, max_itl_factor=max_itl_factor, step_limit_s=step_limit_s
        )
        budget = self._times.budget
        # Once the backend knows what a cell costs.
        self._memory = Memory(
            backend,
            self._saved,
            has_prefix_cache=has_prefix_cache and not backend.sharing_error,
            disk_prompt_tokens=disk_prompt_tokens,
            longest_move_s=step_limit_s if has_compaction else 0.0,
        )
        self._adapters = AwaitedAdapters(backend)
        self._determinism = Determinism(backend, is_default=is_deterministic)
        self._constrained = ConstrainedAnswers(constraints, backend.vocab)
        self._breakers = AwaitedBreakers(backend.vocab)
        self._images = AwaitedImages(images or Images(None, max_bytes=0))
        self._drafting = Drafting(
            budget,
            default=speculation,
            most_rows=0 if backend.speculation_error else backend.verified_rows,
            model=draft_model,
        )
        self._lower_tiers = LowerTiers(tiers, self._saved)
        self.pieces = Pieces(
            backend,
            self._memory,
            self._saved,
            tiers,
            residents=self.residents,
            clock_s=self._clock.monotonic_s,
            longest_s=step_limit_s,
        )
        # A sequence begins in their order: drafts of one depend on whether it has a constraint.
        self._parts: tuple[Part, ...] = (
            self.pieces,
            self._lower_tiers,
            self._adapters,
            self._determinism,
            self._constrained,
            self._drafting,
            self._breakers,
            self._images,
        )
        self._planning = Planning(
            backend,
            self._memory,
            self._times,
            self._report,
            residents=self.residents,
            running=self.running,
            arrived=arrived,
            deschedule=self._deschedule,
        )
        self._sampled = Sampled(
            backend.vocab,
            self._memory,
            self._drafting,
            self._report,
            self._clock,
            worker_id=worker_id,
            complete=self._complete,
            fail=self._fail,
            deschedule=self._deschedule,
        )
        self._began_s = self._clock.monotonic_s()
        self._check_times = CheckTimes(self._began_s)

    def flush(self, limit_s: float, *, requests_only: bool = False) -> engine_pb2.EngineReport:
        """End every request silently, and put what is worth keeping on disk, within `limit_s`.

        Args:
            requests_only: leave the state of the requests to others, and nothing else.
        """
        if requests_only:
            until_s = self._clock.monotonic_s() + limit_s

            def left_s() -> float:
                return max(until_s - self._clock.monotonic_s(), 0.0)

            others = [s for s in self._by_order() if not self.pieces.exports.leave(s, left_s())]
            self._memory.hand_over_all(others, left_s())
            self.pieces.exports.wait_for_writes(left_s())
        for sequence in list(self.residents.values()):
            self._leave(sequence)
        if requests_only:
            return engine_pb2.EngineReport(flushed=engine_pb2.EngineFlushed(requests_only=True))
        self._tiers.poll()
        states, n_bytes = self._memory.store(limit_s)
        return engine_pb2.EngineReport(flushed=engine_pb2.EngineFlushed(states=states, bytes=n_bytes))

    def hand_over_all(self, limit_s: float) -> None:
        """Leave what is computed of the requests to other engines of this machine, within `limit_s`."""
        self._memory.hand_over_all(self._by_order(), limit_s)

    def _by_order(self) -> list[Sequence]:
        """All residents, the most urgent first."""
        return sorted(self.residents.values(), key=lambda s: s.order)

    def cancel(self, key: str, *, is_silent: bool, leaves_state: bool = False) -> None:
        sequence = self.residents.get(key)
        if leaves_state and sequence is not None and not self.pieces.exports.leave(sequence):
            self._memory.hand_over(sequence)
        super().cancel(key, is_silent=is_silent)

    def close(self) -> None:
        """Leave the disk tier to the next process."""
        for part in self._parts:
            part.close()

    def idle_s(self) -> float | None:
        """Seconds for which nothing is to be done unless a command comes: until the next deadline, for ever
        (None), or not at all (0) while sequences run."""
        if self._is_behind or (self.pieces.exports.can_go_on and not self.running):
            return 0.0
        if self.running:
            must_wait, held = self._memory.must_wait, self._held()
            can_step = any(
                not must_wait(s) and not any(s in waiting for waiting in held) for s in self.running.values()
            )
            return 0.0 if can_step else _POLL_S
        if any(part.is_busy for part in self._parts):
            return _POLL_S
        idle_s = super().idle_s()
        if self._tiers.is_scanning or self.pieces.are_any:
            return _SCAN_POLL_S if idle_s is None else min(_SCAN_POLL_S, idle_s)
        return idle_s

    @property
    def _is_behind(self) -> bool:
        """True if more of what is cached is to be told than goes into one report."""
        return self._memory.prefixes.has_news or self._tiers.has_moved

    @property
    def has_news(self) -> bool:
        parts = self._adapters.has_news or self.pieces.has_news
        return self._report.has_news or parts or self._is_behind

    def obey(self, command: engine_pb2.EngineCommand) -> None:
        match command.WhichOneof("command"):
            case "image":
                self.receive(command.image)
            case "load_adapter":
                self.load_adapter(command.load_adapter)
            case "unload_adapter":
                self.unload_adapter(command.unload_adapter.digest)
            case "report_cache":
                self.report_cache()
            case "limit_host":
                self.limit_host(command.limit_host.bytes)
            case "export_state" | "import_state":
                self.pieces.obey(command)
            case _:
                super().obey(command)

    def _new(self, item: worker_pb2.BatchItem) -> Sequence:
        return sequence_of(
            item,
            arrival=self._arrivals,
            now_s=self._clock.monotonic_s(),
            unix_s=self._clock.unix_s(),
            pieces=self._backend.vocab,
            breakers=self._breakers.finder,
            images=self._images.of(item.request),
            is_deterministic=self._determinism.is_wanted(item.request.params),
        )

    def _begin(self, sequence: Sequence, item: worker_pb2.BatchItem) -> None:
        try:
            for part in self._parts:
                part.begin(sequence, item.request)
        except InferFluxError as error:
            self._fail(sequence, error)

    def receive(self, image: engine_pb2.EngineImage) -> None:
        """Take an image that requests wait for."""
        self._images.images.receive(image)

    def clear_cache(self, command: engine_pb2.EngineClearCache) -> None:
        """Give cached prefixes up, and report what that freed. Requests keep what they have."""
        clear, cleared = command.clear, scheduler_pb2.CacheCleared()
        if clear.prefixes:
            cleared.sequences, cleared.cells = self._memory.prefixes.clear(clear.cache_scope)
        if clear.tiers:
            self._lower_tiers.clear(clear.cache_scope, cleared)
        self._report.step.cleared.add(id=command.id, cleared=cleared)
        self._report.has_news = True

    def limit_host(self, n_bytes: int) -> None:
        """Keep to this much host memory, and report that. Sequences whose state leaves are computed again."""
        for sequence in self._memory.limit_host(n_bytes):
            self._report.computed(sequence)
        self._report.step.host_limits.append(n_bytes)
        self._report.has_news = True

    def load_adapter_now(self, adapter: engine_pb2.EngineAdapter) -> engine_pb2.EngineAdapterLoaded:
        """Load an adapter before anything is served; returns whether it can be used."""
        return self._adapters.adapters.load_now(adapter)

    def load_adapter(self, adapter: engine_pb2.EngineAdapter) -> None:
        """Load an adapter, and report when it can be used, or why it cannot. Sequences go on meanwhile."""
        self._adapters.adapters.begin(adapter)

    def unload_adapter(self, digest: str) -> None:
        """Free an adapter as soon as no request has it."""
        for outcome in self._adapters.retire(digest):
            self._end_waiting(outcome)

    def report_cache(self) -> None:
        """Report all that is cached, as if it were new."""
        self._memory.prefixes.report_all()
        self._tiers.report_all()

    def _write_stats(self, step: engine_pb2.StepReport) -> None:
        stats = step.stats
        self._memory.write_stats(stats)
        parked_cells = sum(map(self._planning.release(), self._planning.parked()))
        stats.kv_cells_reserved = stats.kv_cells_used - parked_cells
        stats.sequences = len(self.residents)
        stats.parked = len(self.residents) - len(self.running)
        if stats.parked:
            stats.swapped = sum(
                s.residence == scheduler_pb2.RESIDENCE_SWAPPED for s in self.residents.values()
            )
        step.cached.extend(self._memory.prefixes.take_news(MOST_TOLD))
        for part in self._parts:
            part.stats(step)

    def step(self) -> None:
        """As `poll`, and `compute` then."""
        self.poll()
        self.compute()

    def poll(self) -> None:
        """Look after what is done meanwhile, and copy state, as far as the step has time for it."""
        self._began_s = began = self._clock.monotonic_s()
        self._expire(began)
        n_decoding = sum(not s.is_prefilling for s in self.running.values())
        self._saved.begin_step(self._times.budget.copying_s(n_decoding))
        for part in self._parts:
            for outcome in part.poll(began):
                self._end_waiting(outcome)

    def compute(self) -> None:
        """Give every decoding sequence its token and prompts their part, as far as the KV cache goes.

        Raises:
            DecodeError: the engine has to start again.
        """
        if not self.running:
            return
        clock, began = self._clock, self._began_s
        plan = self._planning.next(began, self._held())
        if not plan.n_tokens:
            return  # all that runs is read from disk, or waits for its constraint
        for part in self._parts:
            part.extend(plan, self._memory.empty)
        planned = clock.monotonic_s()
        self._planning.make_room(plan)
        try:
            with self._images.images.stepping():
                logits = self._backend.decode(plan, lambda: self._planning.is_interrupted(plan))
        except Interrupted:
            self._times.steps.interrupted()
            return
        decoded = clock.monotonic_s()
        self._sampled.advance(plan)
        self._sampled.take(plan, logits)
        ended = clock.monotonic_s()
        if not plan.is_deterministic:
            self._times.learn(plan, ended - planned, self._memory)
        self._times.tell(
            plan,
            self._report.step.stats,
            accepted=self._drafting.take_accepted(),
            decoded_s=decoded - planned,
            step_s=ended - began,
        )
        self._check_times.stepped()
        self._report.has_news = True

    def _held(self) -> list[Collection[Sequence]]:
        """Sequences that no step may hold, by part."""
        return [held for part in self._parts if (held := part.holds)]

    def _end_waiting(self, outcome: Outcome) -> None:
        """End a sequence that waits no more."""
        sequence = outcome.sequence
        if outcome.error is not None:
            self._fail(sequence, outcome.error)
        else:
            chunk, reason = chunks.checked(sequence, outcome.mismatch)
            self._finish(sequence, chunk, reason)

    def check_ledger(self) -> bool:
        """Compare the KV cells that are counted with llama.cpp's own view, if it is time.

        What differs is dropped, and a request of it is computed again.

        Returns:
            Whether anything differed.
        """
        if not self._check_times.is_due(self._clock.monotonic_s(), is_idle=not self.running):
            return False
        repairs = self._memory.repair(self.residents.values())
        for repair in repairs:
            self._report.step.ledger_repairs.append(str(repair))
            sequence = repair.sequence
            if sequence is None:
                continue
            self._report.computed(sequence)
            if not sequence.is_running:
                self._report.residence(sequence, scheduler_pb2.YIELD_REASON_MEMORY)
        self._report.has_news |= bool(repairs)
        return bool(repairs)

    def _schedule(self, sequence: Sequence, slot: int) -> None:
        sequence.times.scheduled_at_s = self._clock.monotonic_s()
        super()._schedule(sequence, slot)

    def _deschedule(self, sequence: Sequence, reason: scheduler_pb2.YieldReason.ValueType) -> None:
        if sequence.is_loaded and not sequence.position:
            self._memory.unload(sequence)  # there is nothing to keep a sequence id for
        super()._deschedule(sequence, reason)

    def _complete(
        self, sequence: Sequence, chunk: tokens_pb2.TokenChunk, reason: generation_pb2.FinishReason.ValueType
    ) -> None:
        """Finish a sequence; one whose answer is to be checked later, and its last tokens are emitted now."""
        if reason != generation_pb2.FINISH_REASON_STOP or not self._constrained.check(sequence):
            self._finish(sequence, chunk, reason)
        elif chunk.token_ids:
            chunk.held_text = sequence.answer.text.held
            self._report.emit(sequence, chunk.SerializeToString())

    def _leave(self, sequence: Sequence) -> None:
        self._memory.remove(sequence)
        for part in self._parts:
            part.end(sequence)
        super()._leave(sequence)
