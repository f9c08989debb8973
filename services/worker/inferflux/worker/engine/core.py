"""The engine's step: take up what arrived, plan, decode, sample, report."""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

from .budget import StepBudget
from .memory import Memory
from .native import Backend
from .planner import Planner, StepPlan, plan_of, split
from .pressure import Fit, can_load, fit_step, make_room
from .sampling import BadLogits, log_probabilities, top_ids
from .sequence import Sequence, sequence_of

_DEADLINE_EXCEEDED = 4
_INTERNAL = 13
# A wall clock may be set: deadlines are looked at this often at least.
_LONGEST_WAIT_S = 60.0
# A running sequence that finds no KV cells for so long is descheduled: it may find some elsewhere.
_LONGEST_WAIT_FOR_ROOM_S = 1.0


class Engine:
    """Runs every sequence that has a slot, one token each per step, and keeps those that wait to resume.

    Args:
        backend: the loaded model.
        worker_id: named in `started` events.
        step_stretch, step_limit_s: see `StepBudget`.
        swap_bytes: most host memory for sequences that have to leave the KV cache.
    """

    def __init__(
        self, backend: Backend, *, worker_id: str, step_stretch: float, step_limit_s: float, swap_bytes: int
    ) -> None:
        self._backend = backend
        self._worker_id = worker_id
        self._memory = Memory(backend, swap_bytes)
        self._budget = StepBudget(backend.batch_tokens, step_stretch, step_limit_s)
        self._planner = Planner(self._budget)
        for seen in backend.warm_up():
            self._budget.observe(seen.n_prefill, seen.n_decoding, seen.seconds, is_apart=seen.is_apart)
        self._sequences: dict[str, Sequence] = {}
        # By slot.
        self._running: dict[int, Sequence] = {}
        self._arrivals = 0
        self._next_deadline_unix_s = math.inf
        self._report = engine_pb2.StepReport()
        self._has_news = False

    def idle_s(self, unix_s: float) -> float | None:
        """How long nothing is to be done unless a command comes: until the next deadline, for ever (None), or
        not at all (0) while sequences run."""
        if self._running:
            return 0.0
        if self._next_deadline_unix_s == math.inf:
            return None
        return min(max(self._next_deadline_unix_s - unix_s, 0.0), _LONGEST_WAIT_S)

    def start(self, item: worker_pb2.BatchItem) -> None:
        """Take a request up. The worker has checked it against slots, cells and vocabulary."""
        self._arrivals += 1
        sequence = sequence_of(
            item,
            arrival=self._arrivals,
            now_s=time.monotonic(),
            unix_s=time.time(),
            pieces=self._backend.vocab,
        )
        self._sequences[sequence.key] = sequence
        self._next_deadline_unix_s = min(self._next_deadline_unix_s, sequence.deadline_unix_s)
        self._schedule(sequence, item.slot)

    def cancel(self, key: str, *, is_silent: bool) -> None:
        """End a request; nothing if it is not resident."""
        sequence = self._sequences.get(key)
        if sequence is None:
            return
        if is_silent:
            self._leave(sequence)
        else:
            self._finish(sequence, self._chunk(sequence), generation_pb2.FINISH_REASON_CANCELLED)

    def deschedule(self, key: str, epoch: int) -> None:
        """Take a sequence's slot away; nothing if it does not run."""
        sequence = self._sequences.get(key)
        if sequence is not None and sequence.epoch == epoch and sequence.is_running:
            self._deschedule(sequence, scheduler_pb2.YIELD_REASON_PREEMPTED)

    def resume(self, command: engine_pb2.EngineResume) -> None:
        """Run a sequence again; nothing if this epoch of it is not resident."""
        sequence = self._sequences.get(command.key)
        if sequence is None or sequence.epoch != command.epoch:
            return
        sequence.resume(run=command.run, rank=command.rank, token_budget=command.token_budget)
        self._schedule(sequence, command.slot)

    def take_report(self) -> engine_pb2.EngineReport | None:
        """What is to be told since the last call, if anything."""
        if not self._has_news:
            return None
        report = self._report
        stats = report.stats
        stats.kv_cells_used = self._memory.used
        stats.kv_cells_reserved = sum(s.cells for s in self._running.values())
        stats.sequences = len(self._sequences)
        stats.parked = len(self._sequences) - len(self._running)
        if stats.parked:
            stats.swapped = sum(
                s.residence == scheduler_pb2.RESIDENCE_SWAPPED for s in self._sequences.values()
            )
        stats.swap_bytes_used = self._memory.swap_bytes_used
        stats.swap_outs, stats.swap_ins, stats.recomputes = self._memory.take_counts()
        self._report = engine_pb2.StepReport()
        self._has_news = False
        return engine_pb2.EngineReport(step=report)

    def step(self) -> None:
        """Give every decoding sequence its token and prompts their share, as far as the KV cache goes.

        Raises:
            DecodeError: the engine has to start again.
        """
        began = time.perf_counter()
        self._expire(time.time())
        if not self._running:
            return
        plan = self._plan(time.monotonic())
        planned = time.perf_counter()
        self._take_cells(plan)
        logits = self._backend.decode(plan)
        decoded = time.perf_counter()
        self._advance(plan)
        self._sample([share.sequence for share in plan.shares if share.wants_logits], logits)
        ended = time.perf_counter()
        self._budget.observe(plan.n_prefill, len(plan.decoding), ended - planned, is_apart=plan.is_apart)
        stats = self._report.stats
        stats.prefill_tokens = plan.n_prefill
        stats.decode_tokens = len(plan.decoding)
        stats.decode_us = int((decoded - planned) * 1e6)
        stats.step_us = int((ended - began) * 1e6)
        self._has_news = True

    def _plan(self, now_s: float) -> StepPlan:
        """What the next step computes: it fits the KV cache, and is not empty."""
        loaded = [s for s in self._running.values() if s.is_loaded]
        if len(loaded) < len(self._running):
            self._load_some(now_s)
            loaded = [s for s in self._running.values() if s.is_loaded]
        decoding, prefilling = split(loaded)
        plan = self._planner.next(decoding, prefilling, self._memory.room_apart)
        if plan.n_tokens <= self._memory.free:
            return plan
        fit = self._fit(plan, loaded)
        if not fit.grants:  # nobody of this step is so urgent that another would make room; of the next is
            plan = self._planner.next(decoding, prefilling, self._memory.room_apart)
            fit = self._fit(plan, loaded)
        for victim in fit.victims:
            self._evict(victim)
        return plan_of(fit.grants, is_apart=plan.is_apart)

    def _fit(self, plan: StepPlan, loaded: list[Sequence]) -> Fit[Sequence]:
        return fit_step(plan.wanted, loaded, self._parked(), self._memory.free)

    def _load_some(self, now_s: float) -> None:
        """Load those that run and are not in the KV cache, most urgent first; who waits for long is
        descheduled."""
        waiting = [s for s in self._running.values() if not s.is_loaded]
        for sequence in sorted(waiting, key=lambda s: s.order):
            self._load(sequence)
            if not sequence.is_loaded and now_s - sequence.scheduled_at_s > _LONGEST_WAIT_FOR_ROOM_S:
                self._deschedule(sequence, scheduler_pb2.YIELD_REASON_MEMORY)

    def _load(self, sequence: Sequence) -> None:
        """Bring a sequence that runs into the KV cache, if it is its time."""
        running = self._running.values()
        loaded = [s for s in running if s.is_loaded]
        waiting = [s for s in running if not s.is_loaded]
        memory = self._memory
        if not can_load(sequence, loaded, waiting, self._parked(), memory.free, memory.cells):
            return
        victims = make_room(
            sequence.position,
            sequence.order,
            loaded,
            self._parked(),
            free=memory.free,
            free_seq_ids=memory.free_seq_ids,
        )
        for victim in victims:
            self._evict(victim)
        if not memory.load(sequence):
            self._report.prefilled.add(key=sequence.key, epoch=sequence.epoch, computed_tokens=0)

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
        sequence.scheduled_at_s = time.monotonic()
        self._running[slot] = sequence
        self._tell_residence(sequence)

    def _deschedule(self, sequence: Sequence, reason: scheduler_pb2.YieldReason.ValueType) -> None:
        """Take a sequence's slot; what is computed of it stays where it is."""
        if sequence.slot is not None:
            del self._running[sequence.slot]
            sequence.slot = None
        if sequence.is_loaded and not sequence.position:
            self._memory.unload(sequence)  # there is nothing to keep a sequence id for
        self._tell_residence(sequence, reason)

    def _evict(self, sequence: Sequence) -> None:
        """Take a sequence's cells, and its slot; it goes on from host memory, or is computed again."""
        for other in self._memory.unload(sequence):
            self._report.prefilled.add(key=other.key, epoch=other.epoch, computed_tokens=0)
        self._deschedule(sequence, scheduler_pb2.YIELD_REASON_MEMORY)

    def _tell_residence(
        self,
        sequence: Sequence,
        reason: scheduler_pb2.YieldReason.ValueType = scheduler_pb2.YIELD_REASON_UNSPECIFIED,
    ) -> None:
        self._has_news = True
        self._report.residences.add(
            key=sequence.key,
            epoch=sequence.epoch,
            run=sequence.run,
            residence=sequence.residence,
            slot=sequence.slot or 0,
            reason=reason,
            generated_tokens=sequence.generated,
        )

    def _take_cells(self, plan: StepPlan) -> None:
        for share in plan.shares:
            self._memory.grow(share.sequence, share.n)
            if plan.is_apart and not share.sequence.is_apart:
                self._memory.begin_apart(share.sequence)

    def _advance(self, plan: StepPlan) -> None:
        for share in plan.shares:
            sequence = share.sequence
            sequence.position += share.n
            if share.wants_logits:
                self._memory.end_apart(sequence)
                continue
            self._report.prefilled.add(
                key=sequence.key, epoch=sequence.epoch, computed_tokens=sequence.position
            )
            if not sequence.is_announced:
                self._emit(sequence, self._announced(sequence, self._chunk(sequence)))

    def _sample(self, sequences: list[Sequence], logits: NDArray[np.float32]) -> None:
        """Choose and report the next token of each; row i of `logits` belongs to sequence i."""
        if not sequences:
            return
        greedy: list[int] | None = None
        if any(s.sampler.is_plain_greedy for s in sequences):
            best = logits.argmax(axis=1)
            finite = np.isfinite(logits[np.arange(len(sequences)), best])
            greedy = np.where(finite, best, -1).tolist()
        argmax_us = time.time_ns() // 1000
        for row, sequence in enumerate(sequences):
            sampled_us = argmax_us
            try:
                if greedy is not None and sequence.sampler.is_plain_greedy:
                    token = greedy[row]
                    if token < 0:
                        raise BadLogits("the model gave no finite logits")
                else:
                    token = sequence.sampler.choose(logits[row], sequence.generated)
                    sampled_us = time.time_ns() // 1000
            except BadLogits as error:
                self._fail(sequence, _INTERNAL, "BAD_LOGITS", str(error))
                continue
            if sequence.first_token_s == 0.0:
                self._note_first_token(sequence, sampled_us / 1e6)
            self._accept(sequence, token, logits[row], sampled_us)

    @staticmethod
    def _note_first_token(sequence: Sequence, unix_s: float) -> None:
        sequence.first_token_s = time.monotonic()
        if sequence.generated == 0:
            sequence.time_to_first_token_ms = max(unix_s - sequence.enqueued_unix_s, 0.0) * 1000

    def _accept(self, sequence: Sequence, token: int, logits: NDArray[np.float32], unix_us: int) -> None:
        chunk = self._chunk(sequence)
        if not sequence.is_announced:
            self._announced(sequence, chunk)
        chunk.token_ids.append(token)
        chunk.sampled_unix_us = unix_us
        sequence.append(token)
        chunk.text = sequence.text.push(self._backend.vocab.piece(token))
        if sequence.sampler.n_logprobs is not None:
            chunk.logprobs.append(self._logprobs(logits, token, sequence.sampler.n_logprobs))
        if sequence.text.is_stopped or token in sequence.end_tokens:
            self._finish(sequence, chunk, generation_pb2.FINISH_REASON_STOP)
        elif sequence.generated >= sequence.max_tokens:
            self._finish(sequence, chunk, generation_pb2.FINISH_REASON_LENGTH)
        else:
            self._emit(sequence, chunk)
            if sequence.generated == sequence.yields_at:
                self._deschedule(sequence, scheduler_pb2.YIELD_REASON_TIMESLICE)

    def _logprobs(self, logits: NDArray[np.float32], token: int, n_top: int) -> tokens_pb2.TokenLogprobs:
        ids = np.concatenate(([token], top_ids(logits, n_top) if n_top else np.empty(0, np.int64)))
        entries = [
            tokens_pb2.TokenLogprob(
                token_id=int(i),
                text=self._backend.vocab.piece(int(i)).decode("utf-8", "replace"),
                logprob=float(p),
            )
            for i, p in zip(ids, log_probabilities(logits, ids), strict=True)
        ]
        return tokens_pb2.TokenLogprobs(chosen=entries[0], top=entries[1:])

    def _expire(self, unix_s: float) -> None:
        if unix_s < self._next_deadline_unix_s:
            return
        late = [s for s in self._sequences.values() if s.deadline_unix_s <= unix_s]
        for sequence in late:
            message = "the deadline passed while generating"
            self._fail(sequence, _DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", message)
        deadlines = (s.deadline_unix_s for s in self._sequences.values())
        self._next_deadline_unix_s = min(deadlines, default=math.inf)

    def _chunk(self, sequence: Sequence) -> tokens_pb2.TokenChunk:
        return tokens_pb2.TokenChunk(
            request_id=sequence.request_id, epoch=sequence.epoch, offset=sequence.generated
        )

    def _announced(self, sequence: Sequence, chunk: tokens_pb2.TokenChunk) -> tokens_pb2.TokenChunk:
        """`chunk` with the `started` event: its own message when the prompt takes several steps, else with
        the first token."""
        chunk.started.worker_id = self._worker_id
        sequence.is_announced = True
        return chunk

    def _emit(self, sequence: Sequence, chunk: tokens_pb2.TokenChunk) -> None:
        self._report.emissions.add(
            key=sequence.key,
            chunk=chunk.SerializeToString(),
            generated_tokens=sequence.generated,
            epoch=sequence.epoch,
        )

    def _finish(self, sequence: Sequence, chunk: tokens_pb2.TokenChunk, reason: int) -> None:
        """The terminal chunk of a generation that ended as it should; `chunk` may carry its last token."""
        now = time.monotonic()
        chunk.text += sequence.text.finish()
        finished = chunk.finished
        finished.reason = generation_pb2.FinishReason.ValueType(reason)
        finished.usage.prompt_tokens = sequence.prompt_tokens
        finished.usage.completion_tokens = sequence.generated
        first = sequence.first_token_s or now
        finished.timings.queue_ms = sequence.queue_ms
        finished.timings.prefill_ms = (first - sequence.started_s) * 1000
        finished.timings.decode_ms = (now - first) * 1000
        outcome = generation_pb2.FinishReason.Name(finished.reason).removeprefix("FINISH_REASON_").lower()
        self._end(sequence, chunk, outcome)

    def _fail(self, sequence: Sequence, code: int, reason: str, message: str) -> None:
        chunk = self._chunk(sequence)
        chunk.failed.code = code
        chunk.failed.reason = reason
        chunk.failed.message = message
        self._end(sequence, chunk, reason.lower())

    def _end(self, sequence: Sequence, chunk: tokens_pb2.TokenChunk, outcome: str) -> None:
        chunk.attempt_id = sequence.attempt_id
        self._emit(sequence, chunk)
        self._report.ended.add(
            key=sequence.key,
            epoch=sequence.epoch,
            outcome=outcome,
            prompt_tokens=sequence.prompt_tokens,
            completion_tokens=sequence.generated,
            time_to_first_token_ms=sequence.time_to_first_token_ms,
        )
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._memory.remove(sequence)
        del self._sequences[sequence.key]
        if sequence.slot is not None:
            del self._running[sequence.slot]
        self._has_news = True
