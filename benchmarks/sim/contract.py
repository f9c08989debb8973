"""A worker as its contract says, without engine, clock or bus (pure).

What the scheduler may count on is here, once: what a worker accepts and refuses, which run counts, who is
evicted, what heartbeats and events say. The simulator adds the time that steps take. The scheduler's tests
add a step that the test makes. `tests/unit/worker/test_worker_contract.py` compares them with workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from inferflux.common.contract.callers.cache_scope import cache_scope_of
from inferflux.scheduler.core.types.jobs import Attempt, RequestKey
from inferflux.v1 import generation_pb2, scheduler_pb2, worker_pb2

from .prompt_cache import PromptCache

_ENDED_REPORTED = 64

RUNNING = scheduler_pb2.RESIDENCE_RUNNING
PARKED = scheduler_pb2.RESIDENCE_PARKED
SWAPPED = scheduler_pb2.RESIDENCE_SWAPPED

READY = scheduler_pb2.WORKER_STATE_READY
LENGTH = generation_pb2.FINISH_REASON_LENGTH


@dataclass(frozen=True, slots=True)
class Size:
    """The memory and slots of one worker."""

    slots: int = 16
    # In the KV cache at a time: those that run, and those that are parked beside them.
    sequences: int = 32
    kv_cells: int = 16_384
    context_length: int = 4096
    # Cells that fit into host memory.
    swap_cells: int = 65_536
    # Whether what was computed is kept for requests that begin alike.
    caches_prompts: bool = False


@dataclass(slots=True, eq=False)
class Sequence:
    """A resident request. Of its tokens, prompt and generated ones, the first `computed` have KV cells."""

    request: scheduler_pb2.InferenceRequest
    # How many tokens it will have generated in the end.
    output: int
    # Generated, and generated before it came here.
    generated: int
    inherited: int
    # None while it waits to resume.
    slot: int | None = None
    run: int = 0
    urgency_key: float = 0.0
    # New tokens left of its timeslice; 0 for no bound.
    budget: int = 0
    computed: int = 0
    # Cells in host memory.
    swapped: int = 0
    # Prompt tokens that were there when it came.
    cached: int = 0
    key: RequestKey = field(init=False)
    prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.key = key_of(self.request)
        self.prompt = len(self.request.prompt_token_ids)

    @property
    def epoch(self) -> int:
        return self.request.epoch

    @property
    def uncomputed(self) -> int:
        return self.prompt + self.generated - self.computed

    @property
    def is_running(self) -> bool:
        return self.slot is not None

    @property
    def residence(self) -> scheduler_pb2.Residence.ValueType:
        if self.is_running:
            return RUNNING
        return PARKED if self.computed else SWAPPED


class ContractWorker(ABC):
    """One worker. Messages come by `on_batch`, `on_command` and `on_cancel`; the owner of its steps calls
    `fit`, `generate` and `finish`.

    Args:
        started_at: orders its incarnations.
    """

    def __init__(self, worker_id: str, incarnation: str, model: str, size: Size, started_at: int = 0) -> None:
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.model = model
        self.size = size
        self.started_at = started_at
        self.term = 0
        self.state: scheduler_pb2.WorkerState.ValueType = READY
        self.residents: dict[RequestKey, Sequence] = {}
        self.ended: list[tuple[RequestKey, int]] = []
        self.cancelled: set[Attempt] = set()
        self.swaps = 0
        self.cache = PromptCache()
        self.role: scheduler_pb2.WorkerRole.ValueType = scheduler_pb2.WORKER_ROLE_UNSPECIFIED

    # What it does besides

    @abstractmethod
    def tell(self, event: scheduler_pb2.WorkerEvent) -> None:
        """Send an event to the scheduler."""

    @abstractmethod
    def emit(self, sequence: Sequence, tokens: int) -> None:
        """Publish this many tokens, the last of those that it has generated."""

    @abstractmethod
    def emit_end(self, sequence: Sequence, reason: generation_pb2.FinishReason.ValueType) -> None:
        """Publish the terminal chunk of a request."""

    def output_of(self, request: scheduler_pb2.InferenceRequest) -> int:
        """How many tokens a request will have generated in the end."""
        return request.params.max_tokens

    def answer_of(self, sequence: Sequence) -> list[int]:
        """The tokens that a request has generated."""
        return list(range(sequence.generated))

    @abstractmethod
    def on_copy(self, cells: int) -> None:
        """These cells are copied to or from host memory."""

    # Messages

    def on_batch(self, batch: worker_pb2.RequestBatch) -> worker_pb2.BatchAccepted:
        answer = worker_pb2.BatchAccepted(batch_id=batch.batch_id)
        reason = self._batch_refusal(batch)
        if not reason:
            for wanted in batch.deschedule:
                self._deschedule(wanted)
        take = self._resume if batch.phase == worker_pb2.PHASE_DECODE else self._take_up
        for item in batch.items:
            if why := reason or take(item):
                answer.refused.add(request_id=item.request.request_id, reason=why, message="refused")
            else:
                answer.accepted_request_ids.append(item.request.request_id)
        return answer

    def _batch_refusal(self, batch: worker_pb2.RequestBatch) -> worker_pb2.RefusalReason.ValueType:
        if batch.incarnation != self.incarnation:
            return worker_pb2.REFUSAL_REASON_WRONG_INCARNATION
        if batch.term < self.term:
            return worker_pb2.REFUSAL_REASON_OLD_TERM
        self.term = batch.term
        return worker_pb2.REFUSAL_REASON_UNSPECIFIED

    def _take_up(self, item: worker_pb2.BatchItem) -> worker_pb2.RefusalReason.ValueType:
        request = item.request
        key = key_of(request)
        if self.state != READY:
            return worker_pb2.REFUSAL_REASON_NOT_READY
        old = self.residents.get(key)
        if item.slot >= self.size.slots or (old is not None and old.epoch >= request.epoch):
            return worker_pb2.REFUSAL_REASON_INVALID
        if Attempt(key, request.attempt_id) in self.cancelled:
            return worker_pb2.REFUSAL_REASON_CANCELLED
        n_prompt = len(request.prompt_token_ids)
        if max(n_prompt, n_prompt + request.params.max_tokens - 1) > self.size.kv_cells:
            return worker_pb2.REFUSAL_REASON_NO_MEMORY
        self.residents.pop(key, None)
        generated = len(request.generated_token_ids)
        sequence = Sequence(request, self.output_of(request), generated, generated)
        self.residents[key] = sequence
        self.reuse(sequence, item)
        self._schedule(sequence, item)
        return worker_pb2.REFUSAL_REASON_UNSPECIFIED

    def reuse(self, sequence: Sequence, _item: worker_pb2.BatchItem) -> None:
        """Take over what is cached of its tokens; the last is always computed."""
        if not self.size.caches_prompts:
            return
        request = sequence.request
        tokens = [*request.prompt_token_ids, *request.generated_token_ids]
        matched = self.cache.use(cache_scope_of(request), tokens[:-1])
        sequence.computed = matched
        sequence.cached = min(matched, sequence.prompt)

    def _resume(self, item: worker_pb2.BatchItem) -> worker_pb2.RefusalReason.ValueType:
        sequence = self.residents.get(key_of(item.request))
        if sequence is None or sequence.epoch != item.request.epoch:
            return worker_pb2.REFUSAL_REASON_NOT_RESIDENT
        if item.slot >= self.size.slots:
            return worker_pb2.REFUSAL_REASON_INVALID
        if item.run > sequence.run:
            self._schedule(sequence, item)
        return worker_pb2.REFUSAL_REASON_UNSPECIFIED

    def _schedule(self, sequence: Sequence, item: worker_pb2.BatchItem) -> None:
        """The latest assignment of a slot counts: another that runs there is descheduled."""
        for other in self.running():
            if other is not sequence and other.slot == item.slot:
                self.deschedule(other, scheduler_pb2.YIELD_REASON_PREEMPTED)
        sequence.slot, sequence.run = item.slot, item.run
        sequence.urgency_key, sequence.budget = item.urgency_key, item.token_budget
        if sequence.swapped:
            self.on_copy(sequence.swapped)
            sequence.computed, sequence.swapped = sequence.swapped, 0
        self._share_sequence_ids()

    def _deschedule(self, wanted: worker_pb2.Deschedule) -> None:
        sequence = self.residents.get(RequestKey(wanted.tenant, wanted.request_id))
        if sequence is not None and sequence.epoch == wanted.epoch and wanted.run >= sequence.run:
            sequence.run = wanted.run
            self.deschedule(sequence, scheduler_pb2.YIELD_REASON_PREEMPTED)

    def on_command(self, command: worker_pb2.WorkerCommand) -> None:
        if command.term < self.term:
            return
        self.term = command.term
        match command.WhichOneof("command"):
            case "drop":
                key = RequestKey(command.drop.tenant, command.drop.request_id)
                sequence = self.residents.get(key)
                if sequence is not None and sequence.epoch <= command.drop.epoch:
                    self.remove(sequence, leaves_state=command.drop.leaves_state)
                self.take_no_more(key, command.drop.epoch)
            case "deschedule":
                self._deschedule(command.deschedule)
            case "take_state":
                self.take_state(command.take_state)
            case "drain":
                self.state = scheduler_pb2.WORKER_STATE_DRAINING
            case "undrain":
                self.state = READY

    def take_state(self, wanted: worker_pb2.TakeState) -> None:
        """Fetch what another worker computes of a request. This one cannot, and says so."""
        event = self.event()
        taken = event.state_taken
        taken.tenant, taken.request_id, taken.epoch = wanted.tenant, wanted.request_id, wanted.origin.epoch
        taken.error = "unsupported"
        self.tell(event)

    def take_no_more(self, key: RequestKey, epoch: int) -> None:  # noqa: B027 - this one takes nothing
        """Fetch no more of a request that has this epoch elsewhere, or an earlier one."""

    def remove(self, sequence: Sequence, *, leaves_state: bool = False) -> None:  # noqa: ARG002
        """A sequence is not resident any more; what is computed of it is kept for others.

        Args:
            leaves_state: another worker fetches its state.
        """
        del self.residents[sequence.key]
        if self.size.caches_prompts and sequence.computed:
            tokens = [*sequence.request.prompt_token_ids, *self.answer_of(sequence)]
            self.cache.keep(cache_scope_of(sequence.request), tokens[: sequence.computed])

    def on_cancel(self, attempt: Attempt) -> None:
        sequence = self.residents.get(attempt.key)
        if sequence is not None and attempt.attempt_id in ("", sequence.request.attempt_id):
            self.finish(sequence, generation_pb2.FINISH_REASON_CANCELLED)
        elif attempt.attempt_id:
            self.cancelled.add(attempt)

    # What it says

    def status(self) -> scheduler_pb2.WorkerStatus:
        """Its heartbeat."""
        status = scheduler_pb2.WorkerStatus(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            state=self.state,
            slots=self.size.slots,
            kv_cells=self.size.kv_cells,
            kv_cells_reserved=sum(s.computed for s in self.running()),
            kv_cells_used=self.cells_used,
            kv_cells_cached=self.cache.cells,
            swap_bytes_used=sum(s.swapped for s in self.residents.values()),
            swap_bytes=self.size.swap_cells,
            term=self.term,
            started_unix_ms=self.started_at,
            role=self.role,
        )
        status.models.add(name=self.model, context_length=self.size.context_length)
        for key, sequence in self.residents.items():
            status.residents.add(
                tenant=key.tenant,
                request_id=key.request_id,
                epoch=sequence.epoch,
                run=sequence.run,
                residence=sequence.residence,
                slot=sequence.slot or 0,
                prompt_tokens=sequence.prompt,
                generated_tokens=sequence.generated,
                computed_tokens=sequence.computed + sequence.swapped,
            )
        for key, epoch in self.ended[-_ENDED_REPORTED:]:
            status.finished.add(tenant=key.tenant, request_id=key.request_id, epoch=epoch)
        return status

    def die_engine(self) -> None:
        """The engine dies with all that is resident."""
        self.cache.clear()
        event = self.event()
        event.engine_died.message = "killed"
        event.engine_died.residents.extend(self._identities())
        self.residents.clear()
        self.tell(event)

    def leave(self) -> None:
        """It shuts down, and hands over what is resident."""
        event = self.event()
        event.worker_left.residents.extend(self._identities())
        self.residents.clear()
        self.tell(event)

    def event(self) -> scheduler_pb2.WorkerEvent:
        return scheduler_pb2.WorkerEvent(worker_id=self.worker_id, incarnation=self.incarnation)

    def _identities(self) -> Iterable[scheduler_pb2.RequestEpoch]:
        return [
            scheduler_pb2.RequestEpoch(tenant=key.tenant, request_id=key.request_id, epoch=sequence.epoch)
            for key, sequence in self.residents.items()
        ]

    # Steps

    @property
    def cells_used(self) -> int:
        return sum(s.computed for s in self.residents.values())

    def running(self) -> list[Sequence]:
        """Running requests, most urgent first."""
        return sorted((s for s in self.residents.values() if s.is_running), key=lambda s: s.urgency_key)

    def fit(self, cells: int) -> None:
        """Evict until this many cells are free: what is cached, parked sequences, then running ones, never
        the most urgent."""
        missing = cells + self.cache.cells + self.cells_used - self.size.kv_cells
        self.cache.shrink(max(0, missing))
        while self.size.kv_cells - self.cells_used < cells:
            victims = self._parked() or [s for s in self.running()[1:] if s.computed]
            if not victims:
                return
            self._evict(victims[-1])

    def generate(self, sequence: Sequence, tokens: int) -> None:
        """A sequence has this many more tokens."""
        sequence.generated += tokens
        self.emit(sequence, tokens)
        if sequence.generated >= sequence.output:
            is_full = sequence.generated >= sequence.request.params.max_tokens
            self.finish(sequence, LENGTH if is_full else generation_pb2.FINISH_REASON_STOP)
        elif sequence.budget:
            sequence.budget -= tokens
            if not sequence.budget and sequence.is_running:
                self.deschedule(sequence, scheduler_pb2.YIELD_REASON_TIMESLICE)

    def finish(self, sequence: Sequence, reason: generation_pb2.FinishReason.ValueType) -> None:
        """A request ends here."""
        self.emit_end(sequence, reason)
        self.remove(sequence)
        self.ended.append((sequence.key, sequence.epoch))
        event = self.event()
        ended = event.request_finished
        ended.tenant, ended.request_id = sequence.key
        ended.epoch = sequence.epoch
        ended.outcome = generation_pb2.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()
        ended.usage.prompt_tokens = sequence.prompt
        ended.usage.cached_prompt_tokens = sequence.cached
        ended.usage.completion_tokens = sequence.generated
        self.tell(event)

    def deschedule(self, sequence: Sequence, reason: scheduler_pb2.YieldReason.ValueType) -> None:
        """A sequence does not run any more, or is evicted while it waits."""
        sequence.slot = None
        event = self.event()
        told = event.request_yielded
        told.tenant, told.request_id = sequence.key
        told.epoch, told.run, told.generated_tokens = sequence.epoch, sequence.run, sequence.generated
        told.residence, told.reason = sequence.residence, reason
        self.tell(event)

    def _parked(self) -> list[Sequence]:
        """Parked requests that hold KV cells, most urgent first."""
        parked = (s for s in self.residents.values() if s.computed and not s.is_running)
        return sorted(parked, key=lambda s: s.urgency_key)

    def _share_sequence_ids(self) -> None:
        while len(self.running()) + len(self._parked()) > self.size.sequences:
            self._evict(self._parked()[-1])

    def _evict(self, sequence: Sequence) -> None:
        self.swaps += 1
        self.on_copy(sequence.computed)
        sequence.swapped, sequence.computed = sequence.computed, 0
        self.deschedule(sequence, scheduler_pb2.YIELD_REASON_MEMORY)
        while sum(s.swapped for s in self.residents.values()) > self.size.swap_cells:
            max((s for s in self.residents.values() if s.swapped), key=lambda s: s.urgency_key).swapped = 0


def key_of(request: scheduler_pb2.InferenceRequest) -> RequestKey:
    return RequestKey(request.tenant, request.request_id)
