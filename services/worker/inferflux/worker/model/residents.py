"""Requests of a model that are resident on a worker, and those that finished lately (pure).

The table keeps identity, epoch and published chunks. Where a request is, only the engine reports.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.heartbeats import MAX_REQUESTS
from inferflux.common.contract.requests.embedding_limits import check_task
from inferflux.common.contract.requests.generation_limits import check_params
from inferflux.common.contract.requests.images import check_images, without_placeholders
from inferflux.common.contract.requests.kv_cells import cells_of
from inferflux.common.tracing import trace_id_of
from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2

REMEMBERED_S = 30.0


def request_key(tenant: str, request_id: str) -> str:
    """Key of a request on a worker: its id is unique within its tenant only."""
    return f"{tenant}.{request_id}"


@dataclass(slots=True)
class Resident:
    """A resident request.

    Attributes:
        run: the latest that the engine was asked for.
        reported: where it is, by the engine's latest report.
        subject: the token subject, to which its chunks are published.
        chunks: all that was published for it, kept because the replay stream may lose them.
    """

    request_id: str
    tenant: str
    epoch: int
    prompt_tokens: int
    generated_tokens: int = 0
    computed_tokens: int = 0
    run: int = 0
    attempt_id: str = ""
    # "" without a trace.
    trace_id: str = ""
    reported: engine_pb2.EngineResidence = field(default_factory=engine_pb2.EngineResidence)
    chunks: list[bytes] = field(default_factory=list)
    subject: str = field(init=False)
    _identity: scheduler_pb2.RequestEpoch | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.subject = subjects.tokens(self.tenant, self.request_id)

    @property
    def key(self) -> str:
        return request_key(self.tenant, self.request_id)

    @property
    def may_run(self) -> bool:
        """True if it runs, or will once the engine has read its commands."""
        is_asked = self.reported.run < self.run or not self.reported.residence
        return is_asked or self.reported.residence == scheduler_pb2.RESIDENCE_RUNNING

    def emitted(self, emission: engine_pb2.Emission) -> None:
        """Take note of a chunk. The last generated token is not computed yet."""
        if emission.generated_tokens > self.generated_tokens:
            self.generated_tokens = emission.generated_tokens
            self.computed_tokens = self.prompt_tokens + emission.generated_tokens - 1
        self.chunks.append(emission.chunk)

    def is_descheduled_by(self, news: engine_pb2.EngineResidence) -> bool:
        """True if the news ends a run. The scheduler is told of which."""
        return news.residence != scheduler_pb2.RESIDENCE_RUNNING

    def identity(self) -> scheduler_pb2.RequestEpoch:
        """Identity of the request, for messages that copy it."""
        if (
            self._identity is None
        ):  # made once: each heartbeat of half a minute names a request that has ended
            self._identity = scheduler_pb2.RequestEpoch(
                request_id=self.request_id, epoch=self.epoch, tenant=self.tenant
            )
        return self._identity

    def to_message(self) -> scheduler_pb2.ResidentRequest:
        return scheduler_pb2.ResidentRequest(
            request_id=self.request_id,
            tenant=self.tenant,
            epoch=self.epoch,
            run=self.reported.run,
            residence=self.reported.residence,
            slot=self.reported.slot,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            computed_tokens=self.computed_tokens,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the engine reported when it was ready.

    Attributes:
        constraint_error: why answers cannot be constrained; "" if they can.
        embeds: whether it takes texts to embed, and nothing else.
    """

    slots: int
    kv_cells: int
    context_length: int
    vocabulary_size: int
    constraint_error: str = ""
    # Or sounds.
    takes_images: bool = False
    embeds: bool = False


class Refused(Exception):
    """Why a request is not taken up."""

    def __init__(self, reason: worker_pb2.RefusalReason.ValueType, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ResidentTable:
    """Resident requests by key, requests that finished lately, and attempts that were cancelled lately.

    Attributes:
        limits: what the engine reported when it was ready; None while it is not.
    """

    def __init__(self) -> None:
        self.limits: Limits | None = None
        self._residents: dict[str, Resident] = {}
        self._finished: OrderedDict[str, tuple[float, Resident]] = OrderedDict()
        # Those taken out before their end that have published something.
        self._left: deque[tuple[float, Resident]] = deque()
        # Attempts, by key and attempt id.
        self._cancelled: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._residents)

    @property
    def has_running(self) -> bool:
        """True if the engine has something to compute."""
        return any(resident.may_run for resident in self._residents.values())

    def all(self) -> list[Resident]:
        return list(self._residents.values())

    def epoch_of(self, key: str) -> int:
        """Epoch of a resident request; 0: there is none of this key."""
        resident = self._residents.get(key)
        return resident.epoch if resident is not None else 0

    def has_finished(self, key: str, epoch: int) -> bool:
        """True if that epoch of a request, or a later one, has finished lately."""
        finished = self._finished.get(key)
        return finished is not None and finished[1].epoch >= epoch

    def finished_lately(self, now: float) -> list[Resident]:
        """Requests that finished within the last `REMEMBERED_S` seconds. Older ones are forgotten."""
        self._forget_until(now - REMEMBERED_S)
        return [resident for _, resident in self._finished.values()]

    def admit(self, item: worker_pb2.BatchItem) -> tuple[Resident, Resident | None]:
        """Make a request resident.

        Returns:
            It, and the older epoch of the same request that it replaces and that the engine must drop.

        Raises:
            Refused: it cannot be taken up; nothing has changed.
        """
        if self.limits is None:
            raise Refused(worker_pb2.REFUSAL_REASON_NOT_READY, "the engine is not ready")
        request = item.request
        key = request_key(request.tenant, request.request_id)
        replaced = self._residents.get(key)
        if replaced is not None and replaced.epoch >= request.epoch:
            raise Refused(
                worker_pb2.REFUSAL_REASON_INVALID, f"epoch {request.epoch} is here already or outdated"
            )
        if (key, request.attempt_id) in self._cancelled:
            raise Refused(worker_pb2.REFUSAL_REASON_CANCELLED, "it was cancelled")
        if replaced is None and len(self._residents) >= MAX_REQUESTS:
            raise Refused(worker_pb2.REFUSAL_REASON_NO_MEMORY, f"{MAX_REQUESTS} requests are here already")
        check_request(request, self.limits)
        check_slot(item.slot, self.limits)
        resident = Resident(
            request_id=request.request_id,
            tenant=request.tenant,
            epoch=request.epoch,
            prompt_tokens=len(request.prompt_token_ids),
            generated_tokens=len(request.generated_token_ids),
            run=item.run,
            attempt_id=request.attempt_id,
            trace_id=trace_id_of(request.traceparent),
        )
        self._residents[key] = resident
        return resident, replaced

    def resume(self, item: worker_pb2.BatchItem) -> Resident | None:
        """Have a resident request run again.

        Returns:
            It; None if this run, or a later one, was asked for before.

        Raises:
            Refused: it cannot; nothing has changed.
        """
        resident = self._residents.get(request_key(item.request.tenant, item.request.request_id))
        if resident is None or self.limits is None or resident.epoch != item.request.epoch:
            raise Refused(worker_pb2.REFUSAL_REASON_NOT_RESIDENT, f"epoch {item.request.epoch} is not here")
        check_slot(item.slot, self.limits)
        if item.run <= resident.run:
            return None
        resident.run = item.run
        return resident

    def emitted(self, news: engine_pb2.Emission) -> Resident | None:
        """Take note of a chunk that is to be published; None if this epoch is not resident."""
        resident = self._find(news.key, news.epoch)
        if resident is not None:
            resident.emitted(news)
        return resident

    def deschedule(self, wanted: worker_pb2.Deschedule) -> Resident | None:
        """End a run; None if this epoch is not resident, or a later run was asked for."""
        resident = self._find(request_key(wanted.tenant, wanted.request_id), wanted.epoch)
        if resident is None or wanted.run < resident.run:
            return None
        resident.run = wanted.run
        return resident

    def moved(self, news: engine_pb2.EngineResidence) -> Resident | None:
        """Take note of where the engine has a request; None if this epoch is not resident."""
        resident = self._find(news.key, news.epoch)
        if resident is not None:
            resident.reported = news
        return resident

    def prefilled(self, news: engine_pb2.Prefilled) -> None:
        """Take note of how far a prompt is."""
        resident = self._find(news.key, news.epoch)
        if resident is not None:
            resident.computed_tokens = news.computed_tokens

    def finish(self, key: str, epoch: int, now: float) -> Resident | None:
        """Take a request out, remembering it for a while; None if this epoch is not resident."""
        resident = self._find(key, epoch)
        if resident is None:
            return None
        del self._residents[key]
        self._finished.pop(key, None)
        self._finished[key] = (now, resident)
        return resident

    def drop(self, key: str, epoch: int) -> Resident | None:
        """Take a request out as if it had never been here."""
        resident = self._residents.get(key)
        if resident is None or resident.epoch > epoch:
            return None
        return self._residents.pop(key)

    def clear(self) -> list[Resident]:
        """Every resident request, taken out. Until the next engine is ready, none can be taken up."""
        cleared = self.all()
        self._residents.clear()
        self.limits = None
        return cleared

    def left(self, residents: Iterable[Resident], now: float) -> None:
        """Keep the chunks of requests that were taken out before their end: the next attempt goes on after
        them, and does not publish them again."""
        self._left += ((now, resident) for resident in residents if resident.chunks)

    def kept_chunks(self, now: float) -> dict[str, list[bytes]]:
        """By token subject: the chunks of resident requests, and of those that finished or left lately, in
        the order of their epochs."""
        finished = self.finished_lately(now)
        kept: dict[str, list[bytes]] = {}
        for resident in (*(each for _, each in self._left), *finished, *self.all()):
            if resident.chunks:
                kept.setdefault(resident.subject, []).extend(resident.chunks)
        return kept

    def cancel(self, key: str, attempt_id: str, now: float) -> Resident | None:
        """The request to cancel, if it is here; otherwise the notice is kept, should its attempt still come.

        Args:
            attempt_id: empty for the attempt that is here. Such a notice is not kept.
        """
        resident = self._residents.get(key)
        if resident is not None and attempt_id in ("", resident.attempt_id):
            return resident
        if attempt_id:
            self._cancelled[key, attempt_id] = now
            self._cancelled.move_to_end((key, attempt_id))
        return None

    def _find(self, key: str, epoch: int) -> Resident | None:
        resident = self._residents.get(key)
        return resident if resident is not None and resident.epoch == epoch else None

    def _forget_until(self, then: float) -> None:
        """Forget what finished, left or was cancelled before `then`."""
        while self._finished and next(iter(self._finished.values()))[0] < then:
            self._finished.popitem(last=False)
        while self._left and self._left[0][0] < then:
            self._left.popleft()
        while self._cancelled and next(iter(self._cancelled.values())) < then:
            self._cancelled.popitem(last=False)


def check_slot(slot: int, limits: Limits) -> None:
    """Raises Refused if there is no such slot."""
    if slot >= limits.slots:
        raise Refused(worker_pb2.REFUSAL_REASON_INVALID, f"slot {slot} is not in [0, {limits.slots})")


def _problem_of_images(request: scheduler_pb2.InferenceRequest, limits: Limits) -> str:
    """Why the images of a request cannot be taken; empty if they can."""
    if not request.images:
        return ""
    if not limits.takes_images:
        return "images: this worker's model takes none: it has no mmproj"
    try:
        check_images(request.images, request.prompt_token_ids)
    except InvalidArgument as error:
        return error.message
    n_held = sum(image.tokens for image in request.images)
    if len(without_placeholders(request.prompt_token_ids)) + n_held != len(request.prompt_token_ids):
        return "prompt_token_ids has placeholders of no image"
    return ""


def check_request(request: scheduler_pb2.InferenceRequest, limits: Limits) -> None:
    """Everything llama.cpp would abort over, and the sampler cannot work with.

    Raises:
        Refused: INVALID, naming the field; NO_MEMORY, when the whole KV cache would not do.
    """
    if request.HasField("embedding") or limits.embeds:
        _check_texts(request, limits)
    else:
        _check_generation(request, limits)


def _check_generation(request: scheduler_pb2.InferenceRequest, limits: Limits) -> None:
    """As `check_request`, of one that generates."""
    ids = [*request.prompt_token_ids, *request.generated_token_ids]
    n_prompt = len(request.prompt_token_ids)
    params = request.params
    problem = _problem_of_images(request, limits)
    if request.images and not problem:
        ids = without_placeholders(ids)
    if problem:
        pass
    elif n_prompt == 0:
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
    elif params.HasField("constraint") and limits.constraint_error:
        problem = f"params.constraint: answers cannot be constrained here: {limits.constraint_error}"
    if problem:
        raise Refused(worker_pb2.REFUSAL_REASON_INVALID, problem)
    try:
        check_params(params, vocabulary_size=limits.vocabulary_size)
    except InvalidArgument as error:
        raise Refused(worker_pb2.REFUSAL_REASON_INVALID, f"{error.field}: {error.message}") from None


def _check_texts(request: scheduler_pb2.InferenceRequest, limits: Limits) -> None:
    """As `check_request`, of a job that embeds or is here at an embedder."""
    ids = request.prompt_token_ids[:]
    problem = ""
    if not (limits.embeds and request.HasField("embedding")):
        problem = "the model generates, and the request is to be embedded"
        if limits.embeds:
            problem = "the model embeds, and the request is to be generated for"
    elif len(ids) > limits.kv_cells:
        raise Refused(
            worker_pb2.REFUSAL_REASON_NO_MEMORY, f"{len(ids)} tokens wanted, {limits.kv_cells} in all"
        )
    elif not ids or min(ids) < 0 or max(ids) >= limits.vocabulary_size:
        problem = f"token ids must be in [0, {limits.vocabulary_size})"
    elif (longest := max(request.embedding.text_tokens, default=0)) > limits.context_length:
        problem = f"a text of {longest} tokens exceeds the context of {limits.context_length}"
    if problem:
        raise Refused(worker_pb2.REFUSAL_REASON_INVALID, problem)
    try:
        check_task(request)
    except InvalidArgument as error:
        raise Refused(worker_pb2.REFUSAL_REASON_INVALID, f"{error.field}: {error.message}") from None
