"""A worker as its contract says, without an engine: steps take the time that a model of them says.

Every decoding sequence gets a token in each step, prompts share what the step's token budget leaves, most
urgent first. Steps that are alike are taken in one stretch, so that the simulation costs an event per change
and not per token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from inferflux.scheduler.core.jobs import RequestKey
from inferflux.v1 import scheduler_pb2, worker_pb2

MODEL = "simulated"
_EPSILON = 1e-6
_ENDED_REPORTED = 64

RUNNING = scheduler_pb2.RESIDENCE_RUNNING
PARKED = scheduler_pb2.RESIDENCE_PARKED
SWAPPED = scheduler_pb2.RESIDENCE_SWAPPED


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """What one worker can hold, and how fast it is."""

    slots: int = 16
    sequences: int = 32
    kv_cells: int = 16_384
    context_length: int = 4096
    # A step takes so long, and so much longer for every sequence that decodes in it.
    step_s: float = 0.020
    sequence_s: float = 0.0015
    prefill_tokens_per_s: float = 2000.0
    # Tokens of prompts in one step.
    prefill_budget: int = 128
    # Cells to and from host memory per second; and how many fit there.
    swap_cells_per_s: float = 50_000.0
    swap_cells: int = 65_536

    @property
    def decode_tokens_per_s(self) -> float:
        """With every slot decoding."""
        return self.slots / (self.step_s + self.slots * self.sequence_s)

    def service_s(self, prompt_tokens: float, output_tokens: float) -> float:
        """Time of a full worker that one request takes, its share of the steps."""
        return prompt_tokens / self.prefill_tokens_per_s + output_tokens / self.decode_tokens_per_s


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on board. `known` tokens are the prompt and what was generated; `computed` have KV cells."""

    key: RequestKey
    epoch: int
    prompt: int
    max_tokens: int
    output: int
    generated: int
    slot: int
    rank: float
    budget: int
    residence: scheduler_pb2.Residence.ValueType = RUNNING
    computed: int = 0
    # Cells that wait in host memory to be copied back.
    swapped: int = 0

    @property
    def known(self) -> int:
        return self.prompt + self.generated

    @property
    def uncomputed(self) -> int:
        return self.known - self.computed

    @property
    def is_decoding(self) -> bool:
        return self.uncomputed == 1 and self.computed >= self.prompt

    @property
    def tokens_left(self) -> int:
        """New tokens until something happens to it: its end, or that of its timeslice."""
        left = min(self.output, self.max_tokens) - self.generated
        return min(left, self.budget) if self.budget else left


@dataclass(slots=True)
class Stretch:
    """`steps` equal steps from `start_s`: one token for each of `decoding`, `chunks` of prompts."""

    start_s: float
    step_s: float
    steps: int
    decoding: list[Sequence]
    chunks: list[tuple[Sequence, int]]

    @property
    def end_s(self) -> float:
        return self.start_s + self.step_s * self.steps

    def steps_done(self, now: float) -> int:
        return min(self.steps, math.floor((now - self.start_s) / self.step_s + _EPSILON))


class Readers(Protocol):
    """Those who follow the token streams."""

    def on_tokens(self, key: RequestKey, epoch: int, offset: int, tokens: int, now: float) -> None: ...
    def on_end(self, key: RequestKey, outcome: str) -> None: ...


class ModelledWorker:
    """One worker. `look` and `next_s` move it through time; messages come by `on_batch`, `on_command`.

    Args:
        output_of: how many tokens a request will generate, if its max_tokens lets it.
        readers: get what it emits.
    """

    def __init__(
        self,
        worker_id: str,
        model: WorkerModel,
        *,
        output_of: Callable[[RequestKey], int],
        readers: Readers,
    ) -> None:
        self.worker_id = worker_id
        self.model = model
        self.on_board: dict[RequestKey, Sequence] = {}
        self.events: list[scheduler_pb2.WorkerEvent] = []
        self.swaps = 0
        self._output_of = output_of
        self._readers = readers
        self._stretch: Stretch | None = None
        self._ended: list[tuple[RequestKey, int]] = []
        # Work that the next step waits for: copies to and from host memory.
        self._copy_s = 0.0
        self._term = 0

    @property
    def next_s(self) -> float | None:
        """When to call `look` next; None while it has nothing to do."""
        return None if self._stretch is None else self._stretch.end_s

    def look(self, now: float) -> None:
        """Take what is done by `now` into account, and go on with what comes next."""
        stretch = self._stretch
        if stretch is None:
            return
        self._apply(stretch, stretch.steps_done(now))
        if not stretch.steps:
            self._stretch = None
            self._begin(stretch.start_s)

    def take_events(self) -> list[scheduler_pb2.WorkerEvent]:
        """What it has to say since the last call."""
        events, self.events = self.events, []
        return events

    # Messages

    def on_batch(self, batch: worker_pb2.RequestBatch, now: float) -> worker_pb2.BatchAccepted:
        answer = worker_pb2.BatchAccepted(batch_id=batch.batch_id)
        self._interrupt(now)
        is_old = batch.term < self._term
        self._term = max(self._term, batch.term)
        if not is_old:
            for preemption in batch.preemptions:
                self._preempt(preemption)
        is_resume = batch.phase == worker_pb2.PHASE_DECODE
        for item in batch.items:
            if is_old:
                reason = worker_pb2.REFUSAL_REASON_OLD_TERM
            else:
                reason = self._resume(item) if is_resume else self._take_up(item)
            if reason:
                answer.refused.add(request_id=item.request.request_id, reason=reason, message="refused")
            else:
                answer.accepted_request_ids.append(item.request.request_id)
        if self._stretch is None:
            self._begin(now)
        return answer

    def on_command(self, command: worker_pb2.WorkerCommand, now: float) -> None:
        """Only drops: simulated workers are not drained."""
        drop = command.drop
        key = RequestKey(drop.tenant, drop.request_id)
        sequence = self.on_board.get(key)
        if sequence is not None and sequence.epoch <= drop.epoch:
            self._interrupt(now)
            del self.on_board[key]
            if self._stretch is None:
                self._begin(now)

    def status(self, now: float) -> scheduler_pb2.WorkerStatus:
        """Its heartbeat."""
        self.look(now)
        model = self.model
        running_cells = sum(s.computed for s in self._with(RUNNING))
        status = scheduler_pb2.WorkerStatus(
            worker_id=self.worker_id,
            incarnation=f"{self.worker_id}-1",
            state=scheduler_pb2.WORKER_STATE_READY,
            slots=model.slots,
            sequences=model.sequences,
            kv_cells=model.kv_cells,
            kv_cells_reserved=running_cells,
            kv_cells_used=self.cells_used,
            prefill_tokens_per_s=model.prefill_tokens_per_s,
            decode_tokens_per_s=model.decode_tokens_per_s,
            term=self._term,
            swap_bytes_used=sum(s.swapped for s in self._with(SWAPPED)),
            swap_bytes=model.swap_cells,
        )
        status.models.add(name=MODEL, context_length=model.context_length)
        for key, sequence in self.on_board.items():
            status.running.add(
                tenant=key.tenant,
                request_id=key.request_id,
                epoch=sequence.epoch,
                slot=sequence.slot,
                prompt_tokens=sequence.prompt,
                generated_tokens=sequence.generated,
                residence=sequence.residence,
                computed_tokens=sequence.computed,
            )
        for key, epoch in self._ended[-_ENDED_REPORTED:]:
            status.ended.add(tenant=key.tenant, request_id=key.request_id, epoch=epoch)
        return status

    @property
    def cells_used(self) -> int:
        return sum(s.computed for s in self.on_board.values() if s.residence != SWAPPED)

    # Taking up and giving up

    def _take_up(self, item: worker_pb2.BatchItem) -> worker_pb2.RefusalReason.ValueType:
        request = item.request
        key = RequestKey(request.tenant, request.request_id)
        old = self.on_board.get(key)
        if old is not None and old.epoch >= request.epoch:
            return worker_pb2.REFUSAL_REASON_INVALID
        prompt, most = len(request.prompt_token_ids), request.params.max_tokens
        if prompt + most - 1 > self.model.kv_cells:
            return worker_pb2.REFUSAL_REASON_NO_MEMORY
        if old is not None:
            del self.on_board[key]
        if not self._make_room(item.slot):
            return worker_pb2.REFUSAL_REASON_SLOT_BUSY
        self.on_board[key] = Sequence(
            key=key,
            epoch=request.epoch,
            prompt=prompt,
            max_tokens=most,
            output=self._output_of(key),
            generated=len(request.generated_token_ids),
            slot=item.slot,
            rank=item.rank,
            budget=item.token_budget,
        )
        return worker_pb2.REFUSAL_REASON_UNSPECIFIED

    def _resume(self, item: worker_pb2.BatchItem) -> worker_pb2.RefusalReason.ValueType:
        request = item.request
        sequence = self.on_board.get(RequestKey(request.tenant, request.request_id))
        if sequence is None or sequence.epoch != request.epoch:
            return worker_pb2.REFUSAL_REASON_NOT_ON_BOARD
        if sequence.residence != RUNNING:
            holder = self._holder(item.slot)
            if holder is not sequence and not self._make_room(item.slot):
                return worker_pb2.REFUSAL_REASON_SLOT_BUSY
            if holder is sequence and self._n_running >= self.model.slots:
                return worker_pb2.REFUSAL_REASON_SLOT_BUSY
            self._copy_s += sequence.swapped / self.model.swap_cells_per_s
            sequence.computed += sequence.swapped
            sequence.swapped = 0
            sequence.slot = item.slot
            sequence.residence = RUNNING
        sequence.rank, sequence.budget = item.rank, item.token_budget
        return worker_pb2.REFUSAL_REASON_UNSPECIFIED

    def _make_room(self, slot: int) -> bool:
        """Whether a sequence may run in the slot, whose parked holder goes to host memory."""
        if slot >= self.model.sequences or self._n_running >= self.model.slots:
            return False
        holder = self._holder(slot)
        if holder is None:
            return True
        if holder.residence == RUNNING:
            return False
        self._swap_out(holder, scheduler_pb2.YIELD_REASON_MEMORY)
        return True

    def _holder(self, slot: int) -> Sequence | None:
        return next((s for s in self.on_board.values() if s.slot == slot and s.residence != SWAPPED), None)

    @property
    def _n_running(self) -> int:
        return sum(1 for _ in self._with(RUNNING))

    def _preempt(self, preemption: worker_pb2.Preemption) -> None:
        sequence = self.on_board.get(RequestKey(preemption.tenant, preemption.request_id))
        if sequence is None or sequence.epoch != preemption.epoch or sequence.residence != RUNNING:
            return
        sequence.residence = PARKED
        self._say_yielded(sequence, scheduler_pb2.YIELD_REASON_PREEMPTED)

    def _swap_out(self, sequence: Sequence, reason: scheduler_pb2.YieldReason.ValueType) -> None:
        self.swaps += 1
        self._copy_s += sequence.computed / self.model.swap_cells_per_s
        sequence.swapped, sequence.computed = sequence.computed, 0
        sequence.residence = SWAPPED
        self._say_yielded(sequence, reason)
        while sum(s.swapped for s in self._with(SWAPPED)) > self.model.swap_cells:
            least = max((s for s in self._with(SWAPPED) if s.swapped), key=lambda s: s.rank)
            least.swapped = 0  # to be computed again

    # Steps

    def _interrupt(self, now: float) -> None:
        """The step that runs is the last one before something changes."""
        self.look(now)
        if self._stretch is not None:
            self._stretch.steps = 1

    def _begin(self, now: float) -> None:
        """Plan the next stretch."""
        self._free_cells()
        running = sorted(self._with(RUNNING), key=lambda s: s.rank)
        if not running:
            return
        decoding = [s for s in running if s.is_decoding]
        prefilling = [s for s in running if not s.is_decoding]
        room = self.model.kv_cells - self.cells_used - len(decoding)
        chunks = list(_share(prefilling, min(self.model.prefill_budget, room)))
        tokens = sum(n for _, n in chunks)
        model = self.model
        step_s = (
            model.step_s
            + model.sequence_s * len(decoding)
            + tokens / model.prefill_tokens_per_s
            + self._copy_s
        )
        steps = 1 if self._copy_s else self._alike(decoding, chunks, room + len(decoding))
        self._copy_s = 0.0
        self._stretch = Stretch(now, step_s, steps, decoding, chunks)

    @staticmethod
    def _alike(decoding: list[Sequence], chunks: list[tuple[Sequence, int]], room: int) -> int:
        """How many steps in a row are the same."""
        per_step = len(decoding) + sum(n for _, n in chunks)
        bounds = [s.tokens_left for s in decoding] + [s.uncomputed // n for s, n in chunks]
        if len(chunks) > 1:
            return 1
        return max(1, min([*bounds, room // max(1, per_step)]))

    def _free_cells(self) -> None:
        """Swap out whoever is least urgent until the next step fits: parked sequences, then running ones,
        never the most urgent."""
        while True:
            running = sorted(self._with(RUNNING), key=lambda s: s.rank)
            if not running:
                return
            decoding = sum(1 for s in running if s.is_decoding)
            needed = max(1, decoding) + (not running[0].is_decoding and decoding > 0)
            if self.model.kv_cells - self.cells_used >= needed:
                return
            parked = sorted(self._with(PARKED), key=lambda s: s.rank)
            victims = parked or running[1:]
            if not victims:
                return
            self._swap_out(victims[-1], scheduler_pb2.YIELD_REASON_MEMORY)

    def _apply(self, stretch: Stretch, steps: int) -> None:
        """Account for so many of its steps. What was parked meanwhile still gets its token."""
        if not steps:
            return
        end_s = stretch.start_s + steps * stretch.step_s
        for sequence, tokens in stretch.chunks:
            if self._is_current(sequence):
                sequence.computed += tokens * steps
                if not sequence.uncomputed:
                    self._generate(sequence, 1, end_s)
        for sequence in stretch.decoding:
            if self._is_current(sequence):
                sequence.computed += steps
                self._generate(sequence, steps, end_s)
        stretch.start_s, stretch.steps = end_s, stretch.steps - steps

    def _is_current(self, sequence: Sequence) -> bool:
        return self.on_board.get(sequence.key) is sequence and sequence.residence != SWAPPED

    def _generate(self, sequence: Sequence, tokens: int, now: float) -> None:
        sequence.generated += tokens
        self._readers.on_tokens(sequence.key, sequence.epoch, sequence.generated - tokens, tokens, now)
        if sequence.generated >= min(sequence.output, sequence.max_tokens):
            self._end(sequence)
        elif sequence.budget:
            sequence.budget -= tokens
            if not sequence.budget and sequence.residence == RUNNING:
                sequence.residence = PARKED
                self._say_yielded(sequence, scheduler_pb2.YIELD_REASON_TIMESLICE)

    def _end(self, sequence: Sequence) -> None:
        del self.on_board[sequence.key]
        self._ended.append((sequence.key, sequence.epoch))
        event = self._event()
        ended = event.request_ended
        ended.tenant, ended.request_id = sequence.key
        ended.epoch = sequence.epoch
        ended.outcome = "length" if sequence.generated >= sequence.max_tokens else "stop"
        self._readers.on_end(sequence.key, ended.outcome)
        ended.usage.prompt_tokens = sequence.prompt
        ended.usage.completion_tokens = sequence.generated

    def _say_yielded(self, sequence: Sequence, reason: scheduler_pb2.YieldReason.ValueType) -> None:
        yielded = self._event().request_yielded
        yielded.tenant, yielded.request_id = sequence.key
        yielded.epoch = sequence.epoch
        yielded.reason = reason
        yielded.residence = sequence.residence
        yielded.generated_tokens = sequence.generated

    def _event(self) -> scheduler_pb2.WorkerEvent:
        event = scheduler_pb2.WorkerEvent(worker_id=self.worker_id, incarnation=f"{self.worker_id}-1")
        self.events.append(event)
        return event

    def _with(self, residence: scheduler_pb2.Residence.ValueType) -> Iterator[Sequence]:
        return (s for s in self.on_board.values() if s.residence == residence)


def _share(prefilling: Iterable[Sequence], budget: int) -> Iterator[tuple[Sequence, int]]:
    """The step's budget over prompts, one after the other."""
    for sequence in prefilling:
        if budget <= 0:
            return
        tokens = min(budget, sequence.uncomputed)
        budget -= tokens
        yield sequence, tokens
