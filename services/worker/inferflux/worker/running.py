"""Which requests a worker has on board, and which just left it (pure).

The table decides what a batch may bring: its answers are what the scheduler is told.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from inferflux.common import subjects
from inferflux.common.errors import InvalidArgument
from inferflux.common.generation_limits import check_params
from inferflux.common.heartbeats import MAX_REQUESTS
from inferflux.common.kv_cells import cells_of
from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2

REMEMBERED_S = 30.0


def request_key(tenant: str, request_id: str) -> str:
    """What a request is known by on board: its id is unique within its tenant only."""
    return f"{tenant}.{request_id}"


@dataclass(slots=True)
class Running:
    """A request on board; `chunks` is everything published for it, kept for readers that lose some.

    `turn` counts how often it was resumed: what the engine says of an earlier turn is no news.
    """

    request_id: str
    tenant: str
    epoch: int
    slot: int
    prompt_tokens: int
    generated_tokens: int = 0
    computed_tokens: int = 0
    residence: scheduler_pb2.Residence.ValueType = scheduler_pb2.RESIDENCE_RUNNING
    turn: int = 0
    attempt_id: str = ""
    chunks: list[bytes] = field(default_factory=list)

    @property
    def key(self) -> str:
        return request_key(self.tenant, self.request_id)

    @property
    def subject(self) -> str:
        """Where its chunks go."""
        return subjects.tokens(self.tenant, self.request_id)

    @property
    def is_running(self) -> bool:
        return self.residence == scheduler_pb2.RESIDENCE_RUNNING

    @property
    def is_swapped(self) -> bool:
        return self.residence == scheduler_pb2.RESIDENCE_SWAPPED

    def emitted(self, emission: engine_pb2.Emission) -> None:
        """Take note of a chunk. The last generated token is not computed yet."""
        if emission.generated_tokens > self.generated_tokens:
            self.generated_tokens = emission.generated_tokens
            self.computed_tokens = self.prompt_tokens + emission.generated_tokens - 1
        self.chunks.append(emission.chunk)

    def to_message(self) -> scheduler_pb2.RunningRequest:
        return scheduler_pb2.RunningRequest(
            request_id=self.request_id,
            tenant=self.tenant,
            epoch=self.epoch,
            slot=self.slot,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            residence=self.residence,
            computed_tokens=self.computed_tokens,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine reported when it was ready."""

    slots: int
    sequences: int
    kv_cells: int
    context_length: int
    vocabulary_size: int


class Refused(Exception):
    """Why a request is not taken up."""

    def __init__(self, reason: worker_pb2.RefusalReason.ValueType, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RunningTable:
    """Requests on board by key and where each is; and what ended or was cancelled lately."""

    def __init__(self) -> None:
        self.limits: Limits | None = None
        self._running: dict[str, Running] = {}
        self._ended: OrderedDict[str, tuple[float, Running]] = OrderedDict()
        # Attempts, by key and attempt id.
        self._cancelled: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running)

    def get(self, key: str) -> Running | None:
        return self._running.get(key)

    @property
    def has_running(self) -> bool:
        """Whether it is anybody's turn."""
        return any(r.is_running for r in self._running.values())

    def all(self) -> list[Running]:
        return list(self._running.values())

    def ended_lately(self, now: float) -> list[Running]:
        """Requests that ended within the last `REMEMBERED_S` seconds. What is older is forgotten."""
        self._forget_until(now - REMEMBERED_S)
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
        if (key, request.attempt_id) in self._cancelled:
            raise Refused(worker_pb2.REFUSAL_REASON_CANCELLED, "it was cancelled")
        if replaced is None and len(self._running) >= MAX_REQUESTS:
            raise Refused(worker_pb2.REFUSAL_REASON_SLOT_BUSY, f"{MAX_REQUESTS} requests are here already")
        check_request(request, self.limits)
        self._check_place(item.slot, self.limits, replaced)
        running = Running(
            request_id=request.request_id,
            tenant=request.tenant,
            epoch=request.epoch,
            slot=item.slot,
            prompt_tokens=len(request.prompt_token_ids),
            generated_tokens=len(request.generated_token_ids),
            attempt_id=request.attempt_id,
        )
        self._running[key] = running
        self._take_slot(running, item.slot)
        return running, replaced

    def park(self, preemption: worker_pb2.Preemption) -> Running | None:
        """Take a request's turn away; None if it is not its turn, or this epoch is not on board."""
        running = self._running.get(request_key(preemption.tenant, preemption.request_id))
        if running is None or running.epoch != preemption.epoch or not running.is_running:
            return None
        running.residence = scheduler_pb2.RESIDENCE_PARKED
        return running

    def resume(self, item: worker_pb2.BatchItem) -> Running | None:
        """Give a request its turn again.

        Returns:
            It; None if it is its turn already.

        Raises:
            Refused: it cannot be; nothing has changed.
        """
        running = self._running.get(request_key(item.request.tenant, item.request.request_id))
        if running is None or self.limits is None or running.epoch != item.request.epoch:
            raise Refused(worker_pb2.REFUSAL_REASON_NOT_ON_BOARD, f"epoch {item.request.epoch} is not here")
        if running.is_running:
            return None
        self._check_place(item.slot, self.limits, running)
        running.residence = scheduler_pb2.RESIDENCE_RUNNING
        running.turn += 1
        self._take_slot(running, item.slot)
        return running

    def yielded(self, news: engine_pb2.EngineYielded) -> Running | None:
        """Take note that a request does not run any more; None if that is no news."""
        running = self._running.get(news.key)
        if running is None or running.epoch != news.epoch or running.turn != news.turn:
            return None
        if not running.is_swapped:
            running.residence = news.residence
        return running

    def prefilled(self, news: engine_pb2.Prefilled) -> None:
        """Take note of how far a prompt is."""
        running = self._running.get(news.key)
        if running is not None and running.epoch == news.epoch:
            running.computed_tokens = news.computed_tokens

    def _check_place(self, slot: int, limits: Limits, own: Running | None) -> None:
        """Raises:
        Refused: `slot` does not exist or somebody runs in it, or as many run as may.
        """
        if slot >= limits.sequences:
            raise Refused(worker_pb2.REFUSAL_REASON_INVALID, f"slot {slot} is not in [0, {limits.sequences})")
        others = [r for r in self._running.values() if r.is_running and r is not own]
        if any(r.slot == slot for r in others):
            raise Refused(worker_pb2.REFUSAL_REASON_SLOT_BUSY, f"slot {slot} is taken")
        if len(others) >= limits.slots:
            raise Refused(worker_pb2.REFUSAL_REASON_SLOT_BUSY, f"{limits.slots} requests run already")

    def _take_slot(self, running: Running, slot: int) -> None:
        """Seat a request; who is parked there is swapped out."""
        running.slot = slot
        for other in self._running.values():
            if other is not running and other.slot == slot and not other.is_swapped:
                other.residence = scheduler_pb2.RESIDENCE_SWAPPED

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

    def cancel(self, key: str, attempt_id: str, now: float) -> Running | None:
        """The request to cancel, if it is here; otherwise the notice is kept, should its attempt still come.

        Args:
            attempt_id: empty for the attempt that is here. Such a notice is not kept.
        """
        running = self._running.get(key)
        if running is not None and attempt_id in ("", running.attempt_id):
            return running
        if attempt_id:
            self._cancelled[key, attempt_id] = now
            self._cancelled.move_to_end((key, attempt_id))
        return None

    def _forget_until(self, then: float) -> None:
        """Forget what ended or was cancelled before `then`."""
        while self._ended and next(iter(self._ended.values()))[0] < then:
            self._ended.popitem(last=False)
        while self._cancelled and next(iter(self._cancelled.values())) < then:
            self._cancelled.popitem(last=False)


def check_request(request: scheduler_pb2.InferenceRequest, limits: Limits) -> None:
    """Everything llama.cpp would abort over, and the sampler cannot work with.

    Raises:
        Refused: INVALID, naming the field; NO_MEMORY, when the whole KV cache would not do.
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
    elif (cells := cells_of(n_prompt, params.max_tokens)) > limits.kv_cells:
        raise Refused(
            worker_pb2.REFUSAL_REASON_NO_MEMORY, f"{cells} KV cells wanted, {limits.kv_cells} in all"
        )
    elif n_prompt + params.max_tokens > limits.context_length:
        problem = f"{n_prompt} + {params.max_tokens} tokens exceed the context of {limits.context_length}"
    elif len(request.generated_token_ids) >= params.max_tokens:
        problem = "generated_token_ids already reach params.max_tokens"
    if problem:
        raise Refused(worker_pb2.REFUSAL_REASON_INVALID, problem)
    try:
        check_params(params, vocabulary_size=limits.vocabulary_size)
    except InvalidArgument as error:
        raise Refused(worker_pb2.REFUSAL_REASON_INVALID, f"{error.field}: {error.message}") from None
