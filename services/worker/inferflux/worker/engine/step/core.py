"""The engine's step: take up what arrived, plan, decode, sample, report."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from inferflux.common.contract.errors import (
    DeadlineExceeded,
    InferFluxError,
    Internal,
    InvalidArgument,
    Unavailable,
)
from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.constraints.constraints import Constraints
from inferflux.worker.engine.llama.adapters import Adapters
from inferflux.worker.engine.llama.context import Interrupted
from inferflux.worker.engine.llama.draft_model import DraftModel
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.media.images import Images
from inferflux.worker.engine.memory.ledger_check import CheckTimes
from inferflux.worker.engine.memory.memory import Memory
from inferflux.worker.engine.memory.pressure import Fit, can_load, fit_step, make_room
from inferflux.worker.engine.memory.saved import SavedStates
from inferflux.worker.engine.plan.acceptance import Accepted, accept
from inferflux.worker.engine.plan.adapter_steps import AdapterSteps, by_adapter
from inferflux.worker.engine.plan.budget import StepBudget
from inferflux.worker.engine.plan.building import sequence_of
from inferflux.worker.engine.plan.facets import Record
from inferflux.worker.engine.plan.planner import ScheduledTokens, StepPlan, plan_of, split
from inferflux.worker.engine.plan.sequence import Phase, Sequence
from inferflux.worker.engine.plan.speculation import OFF
from inferflux.worker.engine.sampling.breakers import BreakerFinder
from inferflux.worker.engine.sampling.logprobs import Logprobs, logprobs_of
from inferflux.worker.engine.sampling.sampling_rows import BAD, choose_tokens
from inferflux.worker.engine.tiers.rates import Tier
from inferflux.worker.engine.tiers.tiers import Tiers

from . import chunks
from .clock import Clock
from .commands import Arrived, is_more_urgent, none_arrived
from .constrained_answers import ConstrainedAnswers, failure
from .drafting import Drafting
from .masks import Masks, masked_rows
from .plain_chunk import PlainChunk
from .report import Report
from .tier_stats import MOST_TOLD, cached_in, tell_tiers
from .verification import drop_rejected, samplers_of

# A deadline may be farther away than a process can wait.
_LONGEST_WAIT_S = 60.0
# While an idle engine finds the files of an earlier one, they are told of this often.
_SCAN_POLL_S = 0.02
# While all that runs is read from disk, or waits for its constraint or its check, commands are looked at this
# often.
_POLL_S = 0.001
# A running sequence that finds no KV cells for this long is descheduled: it may find some elsewhere.
_LONGEST_WAIT_FOR_ROOM_S = 1.0
# Within this many steps for each of several adapters, every sequence was in one: see `AdapterSteps`.
_STEPS_OF_ADAPTER = 4


class Engine:
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
        self._backend = backend
        self._clock = clock or Clock()
        self._worker_id = worker_id
        self._is_deterministic = is_deterministic
        self._tiers = tiers
        self._saved = SavedStates(backend, tiers, self._clock.monotonic_s, longest_copy_s=step_limit_s)
        self._constrained = ConstrainedAnswers(constraints)
        self._breakers = BreakerFinder(backend.vocab)
        self._images = images or Images(None, max_bytes=0)
        # Sequences whose images are not all encoded.
        self._awaiting_images: list[Sequence] = []
        self._masks = Masks()
        self._arrived = arrived
        self._budget = StepBudget(
            backend.batch_tokens,
            max_itl_factor,
            step_limit_s,
            long_step_tokens=backend.long_step_tokens,
            long_mixed_tokens=backend.long_mixed_tokens,
        )
        self._steps = AdapterSteps(self._budget, backend.shortest_suffix)
        self._adapters = Adapters(backend)
        self._drafting = Drafting(
            self._budget,
            default=speculation,
            most_rows=0 if backend.speculation_error else backend.verified_rows,
            model=draft_model,
        )
        for seen in backend.warm_up():
            tiers.rates.prefill.observe(seen.n_prefill, seen.seconds)
            self._budget.observe(
                seen.n_prefill, seen.n_decoding, seen.seconds, in_prefill_context=seen.in_prefill_context
            )
        if not backend.speculation_error:
            self._budget.know_rows(backend.row_times())
        # Once the backend knows what a cell costs.
        self._memory = Memory(
            backend,
            self._saved,
            has_prefix_cache=has_prefix_cache and not backend.sharing_error,
            disk_prompt_tokens=disk_prompt_tokens,
            longest_move_s=step_limit_s if has_compaction else 0.0,
        )
        self._sequences: dict[str, Sequence] = {}
        # By slot.
        self._running: dict[int, Sequence] = {}
        self._arrivals = 0
        self._switches_told = 0
        self._next_deadline_s = math.inf
        self._check_times = CheckTimes(self._clock.monotonic_s())
        self._report = Report()
        self._plain = PlainChunk()

    def flush(self, limit_s: float) -> engine_pb2.EngineReport:
        """End every request silently, and put what is worth keeping on disk, within `limit_s`."""
        for sequence in list(self._sequences.values()):
            self._leave(sequence)
        self._tiers.poll()
        states, n_bytes = self._memory.store(limit_s)
        return engine_pb2.EngineReport(flushed=engine_pb2.EngineFlushed(states=states, bytes=n_bytes))

    def rescue(self, limit_s: float) -> None:
        """Put what is computed of the requests on disk, within `limit_s`: their worker is gone."""
        self._memory.rescue(sorted(self._sequences.values(), key=lambda s: s.order), limit_s)

    def close(self) -> None:
        """Leave the disk tier to the next process."""
        self._tiers.close()
        self._breakers.close()
        self._images.close()
        self._adapters.close()
        self._constrained.close()

    def idle_s(self) -> float | None:
        """Seconds for which nothing is to be done unless a command comes: until the next deadline, for ever
        (None), or not at all (0) while sequences run."""
        if self._is_behind:
            return 0.0
        if self._running:
            must_wait = self._memory.must_wait
            can_step = any(not must_wait(s) and not s.is_held for s in self._running.values())
            return 0.0 if can_step else _POLL_S
        is_unused = self._adapters.has_retired and not self._sequences
        if self._constrained.is_checking or self._awaiting_images or self._adapters.is_busy or is_unused:
            return _POLL_S
        if self._tiers.is_scanning:
            return _SCAN_POLL_S
        if self._next_deadline_s == math.inf:
            return None
        return min(max(self._next_deadline_s - self._clock.monotonic_s(), 0.0), _LONGEST_WAIT_S)

    @property
    def _is_behind(self) -> bool:
        """True if more of what is cached is to be told than goes into one report."""
        return self._memory.prefixes.has_news or self._tiers.has_moved

    def start(self, item: worker_pb2.BatchItem) -> None:
        """Take a request up. The worker has checked it against slots, cells and vocabulary."""
        self._arrivals += 1
        sequence = sequence_of(
            item,
            arrival=self._arrivals,
            now_s=self._clock.monotonic_s(),
            unix_s=self._clock.unix_s(),
            pieces=self._backend.vocab,
            breakers=self._breakers,
            images=self._images.begin(item.request.images) if item.request.images else None,
        )
        if sequence.origin.adapter and not self._adapters.has(sequence.origin.adapter):
            sequence.lacks_adapter = True
        sequence.is_deterministic = self._wants_the_same(item.request)
        if sequence.origin.was_lost and not sequence.computes_all:
            self._memory.search(sequence)
        self._sequences[sequence.key] = sequence
        self._next_deadline_s = min(self._next_deadline_s, sequence.deadline_s)
        self._schedule(sequence, item.slot)
        if sequence.lacks_adapter and not self._adapters.is_coming(sequence.origin.adapter):
            self._fail(sequence, _no_adapter("the adapter is not loaded here any more"))
            return
        if sequence.is_deterministic and (why := self._why_not_the_same(sequence)):
            self._fail(sequence, _not_deterministic(why))
            return
        if item.request.params.HasField("constraint"):
            try:
                self._constrained.begin(sequence, item.request)
            except Internal as error:
                self._fail(sequence, error)
                return
        if not sequence.is_deterministic:
            self._drafting.begin(sequence, item.request.params.speculation)
        if not sequence.images.is_ready:
            self._awaiting_images.append(sequence)
            self._report.step.wanted_images.extend(self._images.take_wanted())
            self._report.has_news = True

    def _wants_the_same(self, request: scheduler_pb2.InferenceRequest) -> bool:
        params = request.params
        return params.deterministic if params.HasField("deterministic") else self._is_deterministic

    def _why_not_the_same(self, sequence: Sequence) -> str:
        """Reason why a request cannot be deterministic here; empty: it can."""
        if sequence.images:
            return "a prompt has images or sounds"
        return self._backend.open_deterministic()

    def receive(self, image: engine_pb2.EngineImage) -> None:
        """Take an image that requests wait for."""
        self._images.receive(image)

    def cancel(self, key: str, *, is_silent: bool) -> None:
        """End a request; nothing if it is not resident."""
        sequence = self._sequences.get(key)
        if sequence is None:
            return
        if is_silent:
            self._leave(sequence)
        else:
            self._finish(sequence, chunks.empty(sequence), generation_pb2.FINISH_REASON_CANCELLED)

    def deschedule(self, command: engine_pb2.EngineDeschedule) -> None:
        """End a run, and report that it is over; nothing if this epoch of the request is not resident."""
        sequence = self._sequences.get(command.key)
        if sequence is not None and sequence.epoch == command.epoch:
            sequence.run = command.run
            self._deschedule(sequence, scheduler_pb2.YIELD_REASON_PREEMPTED)

    def resume(self, command: engine_pb2.EngineResume) -> None:
        """Run a sequence again; nothing if this epoch of it is not resident."""
        sequence = self._sequences.get(command.key)
        if sequence is None or sequence.epoch != command.epoch:
            return
        sequence.resume(run=command.run, urgency_key=command.urgency_key, token_budget=command.token_budget)
        self._schedule(sequence, command.slot)

    def clear_cache(self, command: engine_pb2.EngineClearCache) -> None:
        """Give cached prefixes up, and report what that freed. Requests keep what they have."""
        clear, cleared = command.clear, scheduler_pb2.CacheCleared()
        if clear.prefixes:
            cleared.sequences, cleared.cells = self._memory.prefixes.clear(clear.cache_scope)
        if clear.tiers:
            freed = self._tiers.clear(clear.cache_scope)
            cleared.host_states, cleared.host_bytes = freed[Tier.HOST]
            cleared.disk_states, cleared.disk_bytes = freed[Tier.DISK]
        self._report.step.cleared.add(id=command.id, cleared=cleared)
        self._report.has_news = True

    def load_adapter_now(self, adapter: engine_pb2.EngineAdapter) -> engine_pb2.EngineAdapterLoaded:
        """Load an adapter before anything is served; returns whether it can be used."""
        return self._adapters.load_now(adapter)

    def load_adapter(self, adapter: engine_pb2.EngineAdapter) -> None:
        """Load an adapter, and report when it can be used, or why it cannot. Sequences go on meanwhile."""
        self._adapters.begin(adapter)

    def unload_adapter(self, digest: str) -> None:
        """Free an adapter as soon as no request has it."""
        self._adapters.retire(digest)
        for sequence in self._sequences_without(digest):
            self._fail(sequence, _no_adapter("the adapter was removed"))

    def _sequences_without(self, digest: str) -> list[Sequence]:
        """Sequences that wait for this adapter, which is not being loaded."""
        if self._adapters.is_coming(digest) or self._adapters.has(digest):
            return []
        return [s for s in self._sequences.values() if s.origin.adapter == digest]

    def _settle_adapters(self) -> None:
        """Let sequences run whose adapters are loaded by now, and free adapters that none has any more."""
        for loaded in self._adapters.poll():
            self._note_adapter(loaded)
        if self._adapters.has_retired:
            self._adapters.free_unused({s.origin.adapter for s in self._sequences.values()})

    def _note_adapter(self, loaded: engine_pb2.EngineAdapterLoaded) -> None:
        self._report.step.adapters.append(loaded)
        self._report.has_news = True
        for sequence in [s for s in self._sequences.values() if s.origin.adapter == loaded.digest]:
            if loaded.error:
                self._fail(sequence, _no_adapter(f"the adapter: {loaded.error}"))
            else:
                sequence.lacks_adapter = False

    def report_cache(self) -> None:
        """Report all that is cached, as if it were new."""
        self._memory.prefixes.report_all()
        self._tiers.report_all()

    def take_report(self) -> engine_pb2.EngineReport | None:
        """Return the report of what happened since the last call; None if nothing did."""
        if not self._report.has_news and not self._is_behind:
            return None
        report = self._report.step
        stats = report.stats
        self._memory.write_stats(stats)
        parked_cells = sum(map(self._release(), self._parked()))
        stats.kv_cells_reserved = stats.kv_cells_used - parked_cells
        stats.sequences = len(self._sequences)
        stats.parked = len(self._sequences) - len(self._running)
        if stats.parked:
            stats.swapped = sum(
                s.residence == scheduler_pb2.RESIDENCE_SWAPPED for s in self._sequences.values()
            )
        stats.swap_bytes_used = self._tiers.preempted_bytes
        tell_tiers(stats, self._tiers, self._saved)
        self._drafting.write_stats(stats)
        self._images.write_stats(stats)
        report.disk_error = self._tiers.take_error()
        report.draft_model_error = self._drafting.take_error()
        report.cached.extend(self._memory.prefixes.take_news(MOST_TOLD))
        report.cached.extend(cached_in(self._tiers))
        return self._report.take()

    def step(self) -> None:
        """Give every decoding sequence its token and prompts their part, as far as the KV cache goes.

        Raises:
            DecodeError: the engine has to start again.
        """
        clock = self._clock
        began = clock.monotonic_s()
        self._expire(self._clock.monotonic_s())
        self._tiers.poll()
        if self._adapters.is_busy or self._adapters.has_retired:
            self._settle_adapters()
        self._settle_constrained(began)
        if self._awaiting_images:
            self._settle_images()
        if not self._running:
            return
        n_decoding = sum(not s.is_prefilling for s in self._running.values())
        self._saved.begin_step(self._budget.copying_s(n_decoding))
        plan = self._plan(began)
        if not plan.n_tokens:
            return  # all that runs is read from disk, or waits for its constraint
        self._drafting.extend(plan, self._memory.empty)
        planned = clock.monotonic_s()
        self._make_room(plan)
        try:
            with self._images.stepping():
                logits = self._backend.decode(plan, lambda: self._is_interrupted(plan))
        except Interrupted:
            self._steps.interrupted()
            return
        decoded = clock.monotonic_s()
        self._take_cells(plan)
        self._advance(plan)
        self._sample(plan, logits)
        ended = clock.monotonic_s()
        if not plan.is_deterministic:
            self._learn(plan, ended - planned)
        stats = self._report.step.stats
        stats.prefill_tokens = plan.n_prefill
        stats.decode_tokens = len(plan.decoding) + self._drafting.take_accepted()
        stats.decode_us = int((decoded - planned) * 1e6)
        stats.step_us = int((ended - began) * 1e6)
        stats.adapter_digest = plan.adapter
        stats.adapter_switches = self._backend.adapter_switches - self._switches_told
        if not plan.n_prefill:
            self._steps.decoded(decoded - planned, is_switched=stats.adapter_switches > 0)
        self._switches_told = self._backend.adapter_switches
        self._check_times.stepped()
        self._report.has_news = True

    def _learn(self, plan: StepPlan, seconds: float) -> None:
        """Note what a step of the main context, or the prefill context, took."""
        self._observe_prefill(plan, seconds)
        self._budget.observe(
            plan.n_prefill,
            len(plan.decoding),
            seconds,
            in_prefill_context=plan.in_prefill_context,
            n_drafted=plan.n_drafted,
        )
        self._memory.prefixes.pay(seconds, plan)
        self._memory.close_holes(plan)

    def check_ledger(self) -> bool:
        """Compare the KV cells that are counted with llama.cpp's own view, if it is time.

        What differs is dropped, and a request of it is computed again.

        Returns:
            Whether anything differed.
        """
        if not self._check_times.is_due(self._clock.monotonic_s(), is_idle=not self._running):
            return False
        repairs = self._memory.repair(self._sequences.values())
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

    def _plan(self, now_s: float) -> StepPlan:
        """Plan the next step: it fits the KV cache, and is not empty."""
        loaded = [s for s in self._running.values() if s.is_loaded]
        if len(loaded) < len(self._running):
            self._load_some(now_s)
            loaded = [s for s in self._running.values() if s.is_loaded]
        plan, n_adapters = self._next_step(loaded)
        loaded = [s for s in loaded if s.is_loaded]
        if plan.n_tokens <= self._memory.free:
            return plan
        fit = self._fit(plan, loaded)
        # No sequence of this step makes another give room; one of the next may.
        for _ in range(1 if n_adapters == 1 else _STEPS_OF_ADAPTER * n_adapters):
            if fit.grants:
                break
            plan, _ = self._next_step(loaded)
            loaded = [s for s in loaded if s.is_loaded]
            fit = self._fit(plan, loaded)
        for victim in fit.victims:
            self._evict(victim)
        return plan_of(
            fit.grants,
            in_prefill_context=plan.in_prefill_context,
            is_long=plan.is_long,
            adapter=plan.adapter,
            is_deterministic=plan.is_deterministic,
        )

    def _next_step(self, loaded: list[Sequence]) -> tuple[StepPlan, int]:
        """(the step of the adapter that is next, of how many adapters there are steps), whether it fits the
        KV cache or not."""
        groups = by_adapter(s for s in loaded if not s.is_held and self._has_room_apart(s))
        if not groups:
            return StepPlan([], []), 0
        adapter = self._steps.choose(groups)
        self._match(split(groups[adapter])[1])
        groups[adapter] = [s for s in groups[adapter] if s.is_loaded]
        return self._steps.plan(adapter, groups, self._memory.prefill_room), len(groups)

    def _has_room_apart(self, sequence: Sequence) -> bool:
        """Return whether a deterministic sequence has its cells. Parked ones give way; others need none."""
        if not sequence.is_deterministic or self._backend.admits(sequence):
            return True
        for parked in self._parked():
            if parked.is_deterministic and parked.is_loaded:
                self._evict(parked)
        return self._backend.admits(sequence)

    def _settle_constrained(self, now_s: float) -> None:
        """Let sequences run whose constraints are compiled, and end those of which that, or a check, is the
        end."""
        for compiled in self._constrained.compiled(now_s):
            if compiled.error is not None:
                self._fail(compiled.sequence, compiled.error)
            else:
                chunk = chunks.empty(compiled.sequence)
                self._complete(compiled.sequence, chunk, generation_pb2.FINISH_REASON_STOP)
        for checked in self._constrained.checked():
            if checked.error is not None:
                self._fail(checked.sequence, checked.error)
            else:
                chunk, reason = chunks.checked(checked.sequence, checked.mismatch)
                self._finish(checked.sequence, chunk, reason)

    def _settle_images(self) -> None:
        """Let sequences run whose images are encoded, and end those of which one cannot be."""
        self._images.settle()
        waiting, self._awaiting_images = self._awaiting_images, []
        for sequence in waiting:
            if self._sequences.get(sequence.key) is not sequence or sequence.images.is_ready:
                continue
            if why := sequence.images.error:
                message = f"an image of the prompt: {why}"
                self._fail(sequence, Unavailable(message, reason="IMAGE_UNAVAILABLE", retry_delay_s=None))
            else:
                self._awaiting_images.append(sequence)

    def _observe_prefill(self, plan: StepPlan, seconds: float) -> None:
        """Learn what computing a prompt takes: of a mixed batch, its share of the tokens."""
        if plan.n_prefill:
            self._tiers.rates.prefill.observe(plan.n_tokens, seconds)

    def _match(self, prefilling: list[Sequence]) -> None:
        """Look up the prompts that the next step may begin, whatever its kind: later ones may find what these
        compute."""
        left = self._budget.most_tokens
        for sequence in prefilling:
            if left <= 0:
                return
            self._memory.match(sequence)
            left -= sequence.n_computable

    def _release(self) -> Callable[[Sequence], int]:
        """Cells that would be free if one more sequence were evicted, after those asked for before."""
        trial = self._memory.trial()
        return lambda sequence: trial.release(sequence.seq_id)

    def _fit(self, plan: StepPlan, loaded: list[Sequence]) -> Fit[Sequence]:
        return fit_step(plan.wanted, loaded, self._parked(), self._memory.free, self._release())

    def _load_some(self, now_s: float) -> None:
        """Load those that run and are not in the KV cache, most urgent first; who waits for long is
        descheduled."""
        waiting = [s for s in self._running.values() if not s.is_loaded]
        for sequence in sorted(waiting, key=lambda s: s.order):
            if not self._memory.must_wait(sequence) or sequence.restore.fetch is not None:
                self._memory.look_up(sequence)
            if self._memory.must_wait(sequence):
                sequence.record.scheduled_at_s = now_s  # it does not wait for room yet
                continue
            self._load(sequence)
            if not sequence.is_loaded and now_s - sequence.record.scheduled_at_s > _LONGEST_WAIT_FOR_ROOM_S:
                self._deschedule(sequence, scheduler_pb2.YIELD_REASON_MEMORY)

    def _load(self, sequence: Sequence) -> None:
        """Bring a sequence that runs into the KV cache, if it is its time."""
        running = self._running.values()
        loaded = [s for s in running if s.is_loaded]
        memory = self._memory
        waiting = [s for s in running if not s.is_loaded and not memory.must_wait(s)]
        if not can_load(
            sequence, loaded, waiting, self._parked(), memory.free, memory.cells, self._release()
        ):
            return
        victims = make_room(
            sequence.position,
            sequence.order,
            loaded,
            self._parked(),
            free=memory.free,
            free_seq_ids=memory.free_seq_ids,
            release=self._release(),
        )
        for victim in victims:
            self._evict(victim)
        is_found = sequence.restore.restored_from is not None
        if not memory.load(sequence) or is_found:
            self._report.computed(sequence)

    def _parked(self) -> list[Sequence]:
        return [s for s in self._sequences.values() if not s.is_running]

    def _schedule(self, sequence: Sequence, slot: int) -> None:
        """Run `sequence` in `slot`. The scheduler's latest assignment counts: it deschedules any other."""
        other = self._running.get(slot)
        if other is not None and other is not sequence:
            self._deschedule(other, scheduler_pb2.YIELD_REASON_PREEMPTED)
        if sequence.slot is not None:
            del self._running[sequence.slot]
        sequence.slot = slot
        sequence.record.scheduled_at_s = self._clock.monotonic_s()
        self._running[slot] = sequence
        self._report.residence(sequence)

    def _deschedule(self, sequence: Sequence, reason: scheduler_pb2.YieldReason.ValueType) -> None:
        """Take a sequence's slot; what is computed of it stays where it is."""
        if sequence.slot is not None:
            del self._running[sequence.slot]
            sequence.slot = None
        if sequence.is_loaded and not sequence.position:
            self._memory.unload(sequence)  # there is nothing to keep a sequence id for
        self._report.residence(sequence, reason)

    def _evict(self, sequence: Sequence) -> None:
        """Take a sequence's cells, and its slot; it goes on from host memory, or is computed again."""
        for other in self._memory.unload(sequence):
            self._report.computed(other)
        self._deschedule(sequence, scheduler_pb2.YIELD_REASON_MEMORY)

    def _is_interrupted(self, plan: StepPlan) -> bool:
        """True if something has arrived that does not wait for a long step."""
        last = max(part.sequence.urgency_key for part in plan.parts)
        return any(is_more_urgent(command, last) for command in self._arrived())

    def _take_cells(self, plan: StepPlan) -> None:
        for part in plan.parts:
            self._memory.grow(part.sequence, part.n)

    def _make_room(self, plan: StepPlan) -> None:
        """Have the cache hold what the step computes."""
        self._memory.prefixes.make_room(cells=plan.n_tokens)
        for part in plan.parts:
            if plan.in_prefill_context and not part.sequence.in_prefill_context:
                self._memory.begin_prefill_context(part.sequence)

    def _advance(self, plan: StepPlan) -> None:
        for part in plan.parts:
            sequence = part.sequence
            if not sequence.reuse.is_counted:
                self._count_first_step(sequence)
            sequence.position += part.n - part.n_drafted
            if part.n_logits:
                if sequence.is_prefilling:
                    self._memory.complete_prefill(sequence)
                continue
            if sequence.position == sequence.reuse.checkpoint_at:
                self._memory.make_checkpoint(sequence)
            self._report.computed(sequence)
            if not sequence.record.is_announced:
                self._emit(sequence, chunks.announce(sequence, chunks.empty(sequence), self._worker_id))

    def _count_first_step(self, sequence: Sequence) -> None:
        """Before its first step here: what was found of a request that another process had."""
        sequence.reuse.is_counted = sequence.reuse.has_begun = True
        if sequence.origin.is_retry:
            self._report.step.stats.retried_tokens += sequence.n_tokens
            self._report.step.stats.retried_found_tokens += sequence.position

    def _score(self, plan: StepPlan, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take in what is told of prompts' tokens; the rows of `logits` of which a token is to be chosen."""
        kept: list[int] = []
        row = 0
        for part in plan.parts:
            end = row + part.n_rows
            if part.n_scored and part.sequence.prompt_scores is not None:
                first = part.sequence.position - part.n
                part.sequence.prompt_scores.add(part.sequence, first, logits[row:end], self._backend.vocab)
            kept += range(end - part.n_logits, end)
            row = end
        return logits[kept]

    def _sample(self, plan: StepPlan, logits: NDArray[np.float32]) -> None:
        """Choose and report the tokens that follow; the rows of `logits` are those that the plan wants."""
        if any(part.n_scored for part in plan.prefilling):
            logits = self._score(plan, logits)
        rows = [
            (part.sequence, part.sequence.generated + i) for part in plan.parts for i in range(part.n_logits)
        ]
        if not rows:
            return
        samplers = [sampler for part in plan.parts for sampler in samplers_of(part)]
        with self._masks.applied(logits, masked_rows(plan.parts)):
            tokens = choose_tokens(logits, samplers, [index for _, index in rows])
        if plan.n_drafted:
            drop_rejected(plan.parts, tokens)
        unix_s = self._clock.unix_s()
        logprobs = logprobs_of(logits, tokens, [sequence.sampler.n_logprobs for sequence, _ in rows])
        first = 0
        for part in plan.parts:
            end = first + part.n_logits
            if part.n_logits:
                self._take_tokens(part, tokens[first:end], logprobs[first:end], unix_s)
            first = end

    def _take_tokens(
        self, part: ScheduledTokens, tokens: list[int], logprobs: list[Logprobs | None], unix_s: float
    ) -> None:
        """Append what was sampled for a sequence, and report it."""
        sequence = part.sequence
        if tokens[0] == BAD:
            if part.n_drafted:
                self._memory.trim(sequence)
            constraint = sequence.answer.constraint
            if constraint is not None and constraint.error:
                self._fail(sequence, failure(sequence, constraint.error))
            else:
                self._fail(sequence, Internal("the model gave no finite logits", reason="BAD_LOGITS"))
            return
        if BAD in tokens:
            tokens = tokens[: tokens.index(BAD)]
        was_prefilling = sequence.phase is Phase.PREFILL
        if was_prefilling:
            self._note_first_token(sequence.record, sequence.generated)
            sequence.phase = Phase.DECODE
        offset = sequence.generated
        accepted = accept(sequence, tokens, self._backend.vocab)
        if part.n_drafted:
            self._settle_draft(part)
        unix_us = int(unix_s * 1e6)
        held = sequence.answer.text.held
        has_more = (
            held
            or was_prefilling  # it may be announced with this token
            or logprobs[0] is not None
            or len(accepted.tokens) > 1
        )
        if has_more or accepted.finish_reason is not None:
            chunk = self._chunk_of(sequence, offset, accepted, logprobs, unix_us)
            if accepted.finish_reason is not None:
                self._complete(sequence, chunk, accepted.finish_reason)
                return
            chunk.held_text = held
            self._emit(sequence, chunk)
        else:
            plain = self._plain.serialized(offset, accepted.tokens[0], accepted.text, unix_us)
            self._report.emit(sequence, plain)
        if accepted.is_timeslice_over:
            self._deschedule(sequence, scheduler_pb2.YIELD_REASON_TIMESLICE)

    def _settle_draft(self, part: ScheduledTokens) -> None:
        """Keep the cells of a draft's tokens that its sequence took."""
        sequence = part.sequence
        taken = sequence.n_tokens - 1 - sequence.position
        sequence.position += taken
        if taken < part.n_drafted:
            self._memory.trim(sequence)
        self._drafting.verified(part, taken)

    def _chunk_of(
        self,
        sequence: Sequence,
        offset: int,
        accepted: Accepted,
        logprobs: list[Logprobs | None],
        unix_us: int,
    ) -> tokens_pb2.TokenChunk:
        chunk = chunks.empty(sequence, offset)
        if not sequence.record.is_announced:
            chunks.announce(sequence, chunk, self._worker_id)
        chunks.add_tokens(chunk, accepted, logprobs, unix_us, self._backend.vocab)
        if offset == 0 and sequence.prompt_scores is not None:
            chunk.prompt_logprobs.extend(sequence.prompt_scores.entries)
            sequence.prompt_scores = None
        return chunk

    def _note_first_token(self, record: Record, generated: int) -> None:
        if record.first_token_s is None:
            now_s = record.first_token_s = self._clock.monotonic_s()
            if generated == 0:
                record.time_to_first_token_ms = max(now_s - record.enqueued_s, 0.0) * 1000

    def _expire(self, now_s: float) -> None:
        if now_s < self._next_deadline_s:
            return
        late = [s for s in self._sequences.values() if s.deadline_s <= now_s]
        for sequence in late:
            self._fail(sequence, DeadlineExceeded("the deadline passed while generating"))
        deadlines = (s.deadline_s for s in self._sequences.values())
        self._next_deadline_s = min(deadlines, default=math.inf)

    def _emit(self, sequence: Sequence, chunk: tokens_pb2.TokenChunk) -> None:
        self._report.emit(sequence, chunk.SerializeToString())

    def _complete(
        self,
        sequence: Sequence,
        chunk: tokens_pb2.TokenChunk,
        reason: generation_pb2.FinishReason.ValueType,
    ) -> None:
        """Finish a sequence; one whose answer is to be checked later, and its last tokens are emitted now."""
        if reason == generation_pb2.FINISH_REASON_STOP and self._constrained.check(
            sequence, self._backend.vocab
        ):
            if chunk.token_ids:
                chunk.held_text = sequence.answer.text.held
                self._emit(sequence, chunk)
            return
        self._finish(sequence, chunk, reason)

    def _finish(
        self,
        sequence: Sequence,
        chunk: tokens_pb2.TokenChunk,
        reason: generation_pb2.FinishReason.ValueType,
    ) -> None:
        """The terminal chunk of a generation that ended as it should; `chunk` may carry its last token."""
        self._end(sequence, chunk, chunks.finish(sequence, chunk, reason, self._clock.monotonic_s()))

    def _fail(self, sequence: Sequence, error: InferFluxError) -> None:
        """The terminal chunk of a generation that failed."""
        chunk = chunks.empty(sequence)
        self._end(sequence, chunk, chunks.fail(chunk, error))

    def _end(self, sequence: Sequence, chunk: tokens_pb2.TokenChunk, outcome: str) -> None:
        chunks.close(sequence, chunk)
        self._emit(sequence, chunk)
        self._report.finished(sequence, outcome)
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._memory.remove(sequence)
        self._drafting.end(sequence)
        self._constrained.end(sequence)
        del self._sequences[sequence.key]
        if sequence.slot is not None:
            del self._running[sequence.slot]
        self._report.has_news = True


def _not_deterministic(why: str) -> InvalidArgument:
    message = (
        f"deterministic, as the request, its key or its model has it, cannot be: {why}. "
        "A request with deterministic: false is answered"
    )
    return InvalidArgument(message, field="params.deterministic", reason="NOT_DETERMINISTIC")


def _no_adapter(why: str) -> Unavailable:
    return Unavailable(why, reason="ADAPTER_NOT_LOADED", retry_delay_s=None)
