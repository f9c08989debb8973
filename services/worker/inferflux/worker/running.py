"""Which requests a worker has on board, and which just left it (pure).

The table decides what a batch may bring: its answers are what the scheduler is told.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from inferflux.common import subjects
from inferflux.common.kv_cells import cells_of
from inferflux.v1 import scheduler_pb2, worker_pb2

REMEMBERED_S = 30.0


def request_key(tenant: str, request_id: str) -> str:
    """What a request is known by on board: its id is unique within its tenant only."""
    return f"{tenant}.{request_id}"


@dataclass(slots=True)
class Running:
    """A request on board; `chunks` is everything published for it, kept for readers that lose some."""

    request_id: str
    tenant: str
    epoch: int
    slot: int
    cells: int
    prompt_tokens: int
    generated_tokens: int = 0
    chunks: list[bytes] = field(default_factory=list)

    @property
    def key(self) -> str:
        return request_key(self.tenant, self.request_id)

    @property
    def subject(self) -> str:
        """Where its chunks go."""
        return subjects.tokens(self.tenant, self.request_id)

    def to_message(self) -> scheduler_pb2.RunningRequest:
        return scheduler_pb2.RunningRequest(
            request_id=self.request_id,
            tenant=self.tenant,
            epoch=self.epoch,
            slot=self.slot,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine reported when it was ready."""

    slots: int
    kv_cells: int
    context_length: int
    vocabulary_size: int


class Refused(Exception):
    """Why a request is not taken up."""

    def __init__(self, reason: worker_pb2.RefusalReason.ValueType, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RunningTable:
    """Requests on board by key, their slots and cells; and what ended or was cancelled lately."""

    def __init__(self) -> None:
        self.limits: Limits | None = None
        self._running: dict[str, Running] = {}
        self._ended: OrderedDict[str, tuple[float, Running]] = OrderedDict()
        self._cancelled: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running)

    def get(self, key: str) -> Running | None:
        return self._running.get(key)

    @property
    def cells_reserved(self) -> int:
        return sum(r.cells for r in self._running.values())

    def all(self) -> list[Running]:
        return list(self._running.values())

    def ended_lately(self, now: float) -> list[Running]:
        """Requests that ended within the last `REMEMBERED_S` seconds."""
        while self._ended and next(iter(self._ended.values()))[0] < now - REMEMBERED_S:
            self._ended.popitem(last=False)
        return [running for _, running in self._ended.values()]

    def admit(self, item: worker_pb2.BatchItem) -> tuple[Running, Running | None]:
        """Put a request on board.

        Returns:
            It, and the older epoch of the same request that it replaces and that the engine must drop.

        Raises:
            Refused: it cannot be taken up; nothing has changed.
        """
        if self.limits is None:
            raise Refused(worker_pb2.REFUSAL_REASON_NOT_READY, "the engine is not ready")
        request = item.request
        key = request_key(request.tenant, request.request_id)
        replaced = self._running.get(key)
        if replaced is not None and replaced.epoch >= request.epoch:
            raise Refused(
                worker_pb2.REFUSAL_REASON_INVALID, f"epoch {request.epoch} is here already or outdated"
            )
        if key in self._cancelled:
            raise Refused(worker_pb2.REFUSAL_REASON_CANCELLED, "it was cancelled")
        check_request(request, self.limits)
        n_prompt = len(request.prompt_token_ids)
        cells = cells_of(n_prompt, request.params.max_tokens)
        self._check_room(item.slot, cells, self.limits, replaced)
        running = Running(
            request_id=request.request_id,
            tenant=request.tenant,
            epoch=request.epoch,
            slot=item.slot,
            cells=cells,
            prompt_tokens=n_prompt,
            generated_tokens=len(request.generated_token_ids),
        )
        self._running[key] = running
        return running, replaced

    def _check_room(self, slot: int, cells: int, limits: Limits, replaced: Running | None) -> None:
        if slot >= limits.slots:
            raise Refused(worker_pb2.REFUSAL_REASON_INVALID, f"slot {slot} is not in [0, {limits.slots})")
        others = [r for r in self._running.values() if r is not replaced]
        if any(r.slot == slot for r in others):
            raise Refused(worker_pb2.REFUSAL_REASON_SLOT_BUSY, f"slot {slot} is taken")
        free = limits.kv_cells - sum(r.cells for r in others)
        if cells > free:
            raise Refused(worker_pb2.REFUSAL_REASON_NO_MEMORY, f"{cells} KV cells wanted, {free} free")

    def end(self, key: str, epoch: int, now: float) -> Running | None:
        """Take a request off board, remembering it for a while; None if this epoch is not on board."""
        running = self._running.get(key)
        if running is None or running.epoch != epoch:
            return None
        del self._running[key]
        self._ended.pop(key, None)
        self._ended[key] = (now, running)
        return running

    def drop(self, key: str, epoch: int) -> Running | None:
        """Take a request off board as if it had never been here."""
        running = self._running.get(key)
        if running is None or running.epoch > epoch:
            return None
        return self._running.pop(key)

    def clear(self) -> list[Running]:
        """Everything on board, taken off: the engine died."""
        lost = self.all()
        self._running.clear()
        self.limits = None
        return lost

    def cancel(self, key: str, now: float) -> Running | None:
        """The request to cancel, if it is on board; otherwise the notice is kept, should it still come."""
        running = self._running.get(key)
        if running is not None:
            return running
        self._cancelled[key] = now
        while next(iter(self._cancelled.values())) < now - REMEMBERED_S:
            self._cancelled.popitem(last=False)
        return None


def check_request(request: scheduler_pb2.InferenceRequest, limits: Limits) -> None:
    """Everything llama.cpp would abort over.

    Raises:
        Refused: INVALID, naming the field.
    """
    ids = [*request.prompt_token_ids, *request.generated_token_ids]
    n_prompt = len(request.prompt_token_ids)
    params = request.params
    problem = ""
    if n_prompt == 0:
        problem = "prompt_token_ids is empty"
    elif min(ids) < 0 or max(ids) >= limits.vocabulary_size:
        problem = f"token ids must be in [0, {limits.vocabulary_size})"
    elif params.max_tokens < 1:
        problem = "params.max_tokens must be at least 1"
    elif n_prompt + params.max_tokens > limits.context_length:
        problem = f"{n_prompt} + {params.max_tokens} tokens exceed the context of {limits.context_length}"
    elif len(request.generated_token_ids) >= params.max_tokens:
        problem = "generated_token_ids already reach params.max_tokens"
    elif any(not 0 <= i < limits.vocabulary_size for i in params.sampling.logit_bias):
        problem = f"params.sampling.logit_bias: token ids must be in [0, {limits.vocabulary_size})"
    if problem:
        raise Refused(worker_pb2.REFUSAL_REASON_INVALID, problem)
