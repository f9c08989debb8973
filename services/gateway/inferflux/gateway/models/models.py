"""The models that are served or can be, learnt from the heartbeats of workers and the reports of hosts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass, replace

from inferflux.common.bus import Bus, Message, Subscription
from inferflux.common.contract import subjects
from inferflux.common.contract.checks import check_model_name
from inferflux.common.contract.errors import InvalidArgument, NotFound, Unavailable, from_code
from inferflux.common.contract.known_workers import KnownWorkers
from inferflux.common.contract.messages.heartbeats import parse_without_requests
from inferflux.common.contract.messages.hosts import chosen_digest, worker_ids
from inferflux.common.contract.messages.hosts import parse_status as parse_host
from inferflux.common.contract.messages.repeats import Repeats
from inferflux.common.contract.models.model_roles import name_of
from inferflux.common.contract.requests import adapters
from inferflux.common.process.bad_messages import BadMessages
from inferflux.gateway.policy.caller import Caller
from inferflux.v1 import cluster_pb2, model_pb2, scheduler_pb2

from .hosts import LIVE_S, HostDirectory
from .model_health import ModelTally
from .splits import Splits, Sticky

# A model that no worker has served for this long is forgotten.
REMEMBERED_S = 600.0
# Models whose tokenizers are loaded ahead of the first request. Those of further ones are loaded by it.
_MOST_AHEAD = 64
# Every live worker sends a heartbeat within this time.
HEARTBEAT_S = 1.0
_MARGIN_S = 0.3
# A host that has not told of a job for this long has ended.
_JOB_GONE_S = 10.0
# Models that an error names.
_MOST_TOLD = 8


@dataclass(slots=True)
class _Worker:
    last_seen_s: float
    state: scheduler_pb2.WorkerState.ValueType
    cards: dict[str, model_pb2.ModelCard]

    def is_as(
        self, state: scheduler_pb2.WorkerState.ValueType, cards: dict[str, model_pb2.ModelCard]
    ) -> bool:
        """Return whether a heartbeat says what the last one said."""
        return state == self.state and cards == self.cards

    def knows(self, name: str) -> bool:
        """Return whether it has the model, and its limits are known."""
        card = self.cards.get(name)
        return card is not None and card.context_length > 0


@dataclass(frozen=True, slots=True)
class _Found:
    """A model's card, which holds from one moment to another while no worker changes."""

    card: model_pb2.ModelCard
    from_s: float
    until_s: float


class ModelTable:
    """Workers and their models. Pure: `now` is a monotonic time in seconds, passed in."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        # How many workers have each.
        self._digests: Counter[str] = Counter()
        # What `card` found, by name. Asked for every request, of hundreds of workers that seldom change.
        self._found: dict[str, _Found] = {}

    def note(self, status: scheduler_pb2.WorkerStatus, now: float) -> None:
        """Take in a heartbeat."""
        cards = {card.name: self._complete(card) for card in status.models}
        before = self._workers.get(status.worker_id)
        if before is not None and before.is_as(status.state, cards) and now - before.last_seen_s <= LIVE_S:
            del self._workers[status.worker_id]
            before.last_seen_s = now
            self._workers[status.worker_id] = before  # the worker seen least recently comes first
            return
        self._drop(status.worker_id)
        self._workers[status.worker_id] = _Worker(now, status.state, cards)
        self._digests.update(card.digest for card in cards.values())

    def _complete(self, card: model_pb2.ModelCard) -> model_pb2.ModelCard:
        """A worker that still loads its model does not know its limits: those that were told before hold."""
        if card.context_length:
            return card
        known = (worker.cards.get(card.name) for worker in self._workers.values())
        same = (other for other in known if other is not None and other.digest == card.digest)
        return next((other for other in same if other.context_length), card)

    def forget_old(self, now: float) -> None:
        while self._workers:
            worker_id, worker = next(iter(self._workers.items()))
            if now - worker.last_seen_s <= REMEMBERED_S:
                return
            self._drop(worker_id)

    def forget(self, worker_id: str) -> None:
        """Forget a worker; nothing if it is not known."""
        self._drop(worker_id)

    def keep_known(self, host_id: str, models: Collection[str]) -> None:
        """Forget the workers on a host whose models it does not know any more."""
        for worker_id in worker_ids(host_id):
            worker = self._workers.get(worker_id)
            if worker is not None and worker.cards.keys().isdisjoint(models):
                self._drop(worker_id)

    def all_models(self, now: float) -> list[model_pb2.Model]:
        """Every known model by name, with the number of workers that serve it now."""
        names = {name for worker in self._workers.values() for name in worker.cards}
        models = (self.get(name, now) for name in sorted(names))
        return [model for model in models if model is not None]

    def get(self, name: str, now: float) -> model_pb2.Model | None:
        """A model, its card as the best worker has it: ready before others, then seen last."""
        having = [worker for worker in self._workers.values() if name in worker.cards]
        if not having:
            return None
        serving = sum(_is_serving(worker, now) for worker in having)
        meant = _of_chosen_file(having, name, now)
        best = max(meant, key=lambda w: (_is_serving(w, now), w.last_seen_s))
        return model_pb2.Model(card=best.cards[name], workers=serving)

    def card(self, name: str, now: float) -> model_pb2.ModelCard | None:
        """The card of a model that some worker, in whatever state, is there for; None if there is none, or
        none that has ever loaded it: requests are checked by what it then says of its limits.

        A worker that is loading or draining counts: the scheduler holds a request for a while, and a worker
        that restarts its engine is ready again soon. What one of them can do, the model can: the scheduler
        finds that worker.
        """
        found = self._found.get(name)
        if found is not None and found.from_s <= now <= found.until_s:
            return found.card
        live = [w for w in self._workers.values() if w.knows(name) and now - w.last_seen_s <= LIVE_S]
        if not live:
            return None
        # Until then all of them are live.
        until_s = min(worker.last_seen_s for worker in live) + LIVE_S
        live = _of_chosen_file(live, name, now)
        best = max(live, key=lambda w: (w.state == scheduler_pb2.WORKER_STATE_READY, w.last_seen_s))
        card = best.cards[name]
        if not card.can_constrain and any(w.cards[name].can_constrain for w in live):
            capable = model_pb2.ModelCard()
            capable.CopyFrom(card)
            capable.can_constrain = True
            card = capable
        self._found[name] = _Found(card, now, until_s)
        return card

    def live_workers(self, now: float) -> dict[str, frozenset[str]]:
        """Models of every worker that sends heartbeats, by worker id."""
        return {
            worker_id: frozenset(worker.cards)
            for worker_id, worker in self._workers.items()
            if now - worker.last_seen_s <= LIVE_S
        }

    def n_served(self, now: float) -> int:
        """How many models a worker serves now."""
        return len({name for w in self._workers.values() if _is_serving(w, now) for name in w.cards})

    def digests(self) -> set[str]:
        """The digests of every known model."""
        return set(self._digests)

    def has_digest(self, digest: str) -> bool:
        """Return whether a known model has it."""
        return digest in self._digests

    def _drop(self, worker_id: str) -> None:
        self._found.clear()
        worker = self._workers.pop(worker_id, None)
        for card in worker.cards.values() if worker is not None else ():
            self._digests[card.digest] -= 1
            if not self._digests[card.digest]:
                del self._digests[card.digest]


def _is_serving(worker: _Worker, now: float) -> bool:
    return worker.state == scheduler_pb2.WORKER_STATE_READY and now - worker.last_seen_s <= LIVE_S


def _of_chosen_file(workers: list[_Worker], name: str, now: float) -> list[_Worker]:
    """The workers that have a model from the file that its name stands for: see `chosen_digest`."""
    digest = chosen_digest((w.cards[name].digest, not _is_serving(w, now)) for w in workers)
    return [worker for worker in workers if worker.cards[name].digest == digest]


class ModelRegistry:
    """Listens to heartbeats and answers for models.

    Args:
        on_model: told of the first digests, each when it is first seen, and again after it was forgotten.
        splits: aliases over several models.
        takes_any_name: whether a name that is not known stands for the only model that is served.
    """

    def __init__(
        self,
        bus: Bus,
        bad: BadMessages,
        *,
        on_model: Callable[[str], None] = lambda _: None,
        splits: Splits | None = None,
        takes_any_name: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.splits = splits or Splits()
        self._takes_any_name = takes_any_name
        self.table = ModelTable()
        self.hosts = HostDirectory()
        self._known = KnownWorkers(self.table.forget)
        self._statuses = Repeats(parse_without_requests)
        self._host_statuses = Repeats(parse_host)
        self._bus = bus
        self._bad = bad
        self._on_model = on_model
        self._clock = clock
        self._seen: set[str] = set()
        self._reported = asyncio.Event()
        self._listening_since = clock()
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        for subject, handler in (
            (subjects.HOST_STATUS_ALL, self._on_host),
            (subjects.WORKER_STATUS_ALL, self._on_status),
        ):
            self._subscriptions.append(await self._bus.serve(subject, handler))
        self._restart_listening()
        # Streams may take long to be there again, and heartbeats need none.
        self._bus.on_connect(self._restart_listening)

    async def close(self) -> None:
        for subscription in self._subscriptions:
            await subscription.close()

    def resolve(self, name: str) -> str:
        """The model that a name in a request means: see `HostDirectory.resolve`."""
        return self.hosts.resolve(name, self._clock())

    async def meant(self, name: str, role: model_pb2.ModelRole.ValueType, caller: Caller) -> str:
        """The model that a request means: by its name, or without one the default or only one.

        Where any name stands for the only model, one that is not known does too.

        Args:
            role: that the model has to have, where the name does not tell which.
            caller: that is told of no other models than it may use.

        Raises:
            InvalidArgument: none is named, none is the default, and not exactly one is served.
            Unavailable: as `all_models`.
        """
        if name and (not self._takes_any_name or self._stands_for_one(name)):
            return name
        await self.settled()
        if self._stands_for_one(name):
            return name or self.resolve("")
        wanted = name_of(role)
        models = [model for model in await self.all_models() if name_of(model.card.role) == wanted]
        # A model whose only engine is being started again is served by none: its requests wait.
        served = [model.card.name for model in models if model.workers] or [
            model.card.name for model in models if self._card(model.card.name) is not None
        ]
        if len(served) == 1:
            return served[0]
        if not name:
            seen = sorted(one for one in served if caller.may_use(one))
            told = ", ".join(map(repr, seen[:_MOST_TOLD])) or "none"
            more = f" and {len(seen) - _MOST_TOLD} more" if len(seen) > _MOST_TOLD else ""
            message = f"name a model: {told}{more} {'are' if len(seen) > 1 else 'is'} served"
            raise InvalidArgument(message, field="model")
        return name

    def _stands_for_one(self, name: str) -> bool:
        """Return whether a name, or none, stands for a model, an alias, or an adapter of a model."""
        base, adapter = adapters.split(name)
        return (
            self.is_split(name)
            or self._is_known(self.resolve(name))
            or bool(adapter and self._is_known(self.resolve(base)))
        )

    def is_split(self, name: str) -> bool:
        """Return whether requests of this name are split over several models."""
        return self.splits.is_alias(name)

    def split_for(self, alias: str, caller: Caller) -> str:
        """The model that a split alias means for a caller: one of those that it may use, and that can be
        loaded."""

        def is_usable(target: str) -> bool:
            model, adapter = self._named(target)
            return caller.may_use(model, adapter) and self._can_serve(model, adapter)

        identity = caller.tenant if self.splits.sticky is Sticky.TENANT else caller.key_id
        return self.splits.choose(alias, identity, is_usable)

    def _can_serve(self, model: str, adapter: str) -> bool:
        """A request for a model would not fail at once: a worker has it, or a host can load it and
        did not fail to."""
        known = self._model(model)
        if known is None or self._card(model) is None:
            return False
        if adapter and adapters.adapter_of(known.card, adapter) is None:
            return False
        return known.workers > 0 or known.state != model_pb2.MODEL_STATE_FAILED

    def _named(self, name: str) -> tuple[str, str]:
        model = self.resolve(name)
        base, adapter = adapters.split(name)
        return (model, "") if not adapter or self._is_known(model) else (self.resolve(base), adapter)

    async def choose(self, name: str) -> tuple[str, str]:
        """(the model, the adapter) that a name in a request means. A model called `a:b` comes before an
        adapter `b` of a model `a`."""
        model = self.resolve(name)
        base, adapter = adapters.split(name)
        if not adapter or self._is_known(model):
            return model, ""
        await self.settled()
        model = self.resolve(name)
        return (model, "") if self._is_known(model) else (self.resolve(base), adapter)

    async def named_for(
        self, caller: Caller, name: str, *, field: str
    ) -> tuple[model_pb2.Model, model_pb2.AdapterCard | None]:
        """The model that a caller asks about, and the adapter of it, if the name means one.

        Raises:
            InvalidArgument: it is no name of a model; names `field`.
            PermissionDenied: the caller may not use it.
            InferFluxError: as `get` and `adapter`.
        """
        await self.settled()
        model, adapter = await self.choose(name)
        check_model_name(model, field=field)
        caller.check_model(model, adapter)
        found = await self.get(model)
        return found, self.adapter(model, adapter) if adapter else None

    def _is_known(self, name: str) -> bool:
        return self._card(name) is not None or self.table.get(name, self._clock()) is not None

    def adapter(self, model: str, name: str) -> model_pb2.AdapterCard:
        """An adapter of a model.

        Raises:
            NotFound: no host and no worker of the model has one of this name.
        """
        now = self._clock()
        hosted, served = self.hosts.model(model, now), self.table.get(model, now)
        cards = [known.card for known in (hosted, served) if known is not None]
        found = next((adapter for card in cards if (adapter := adapters.adapter_of(card, name))), None)
        if found is None:
            message = f"the model {model[:200]!r} has no adapter {name[:64]!r}"
            raise NotFound(message, reason="UNKNOWN_ADAPTER")
        return found

    async def card(self, name: str) -> model_pb2.ModelCard:
        """The card of a model that is served, or that a host can load: a request has it loaded. Waits for one
        heartbeat if listening has just begun.

        Raises:
            NotFound: no worker and no host has ever named it.
            Unavailable: no worker for it is there now (NO_WORKER), none has told of any model (NO_MODELS), or
                NATS is away (NATS_UNAVAILABLE).
        """
        until = self._listening_since + HEARTBEAT_S + _MARGIN_S
        while (card := self._card(name)) is None:
            left_s = until - self._clock()
            if left_s <= 0:
                await self._check_nats()
                raise self._why_not(name)
            self._reported.clear()
            try:
                await asyncio.wait_for(self._reported.wait(), left_s)
            except TimeoutError:
                continue
        return card

    def _card(self, name: str) -> model_pb2.ModelCard | None:
        now = self._clock()
        return self.table.card(name, now) or self.hosts.card(name, now)

    async def settled(self) -> None:
        """Return when every live worker has had time for a heartbeat."""
        left_s = self._listening_since + HEARTBEAT_S + _MARGIN_S - self._clock()
        if left_s > 0:
            await asyncio.sleep(left_s)

    async def live_workers(self) -> dict[str, frozenset[str]]:
        """Models of every worker that sends heartbeats, by worker id.

        Raises:
            Unavailable: there is none as far as is known, and NATS is away.
        """
        await self.settled()
        workers = self.table.live_workers(self._clock())
        if not workers:
            await self._check_nats()
        return workers

    def host_summaries(self) -> list[cluster_pb2.HostSummary]:
        """Every live host in numbers."""
        return self.hosts.summaries(self._clock())

    def tally(self) -> ModelTally:
        """How many models there are in which state."""
        now = self._clock()
        tally = self.hosts.tally(now)
        # A worker that serves counts although its host was not seen.
        return tally if tally.ready else replace(tally, ready=self.table.n_served(now))

    async def get(self, name: str) -> model_pb2.Model:
        """A known model, served or not.

        Raises:
            NotFound: no worker and no host has ever named it.
            Unavailable: NATS is away, so that it is not known whether a worker serves it.
        """
        model = self._model(self.resolve(name))
        if model is None or not model.workers:
            await self._check_nats()
        if model is None:
            raise self._why_not(name)
        return model

    async def all_models(self) -> list[model_pb2.Model]:
        """Every known model, served or not.

        Raises:
            Unavailable: none is served as far as is known, and NATS is away.
        """
        now = self._clock()
        names = {model.card.name for model in self.table.all_models(now)} | self.hosts.names(now)
        models = [model for name in sorted(names) if (model := self._model(name)) is not None]
        if not any(model.workers for model in models):
            await self._check_nats()
        return models

    async def follow(self, job: model_pb2.StoreJob) -> AsyncGenerator[model_pb2.StoreJob, None]:
        """A job of a host's store, each time that it is further; the last one is done.

        Raises:
            Unavailable: its host does not tell of it any more.
            InferFluxError: it has failed.
        """
        seen_s = self._clock()
        yield job
        while job.state == model_pb2.STORE_JOB_STATE_RUNNING:
            self._reported.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reported.wait(), HEARTBEAT_S)
            found = self.hosts.store_job(job.host_id, job.job_id)
            if found is not None and found != job:
                job, seen_s = found, self._clock()
                if job.state != model_pb2.STORE_JOB_STATE_FAILED:
                    yield job
            elif found is not None:
                seen_s = self._clock()
            elif self._clock() - seen_s > _JOB_GONE_S:
                message = f"host {job.host_id} does not tell of it any more: a pull can be resumed"
                raise Unavailable(message, reason="HOST_GONE")
        if job.state == model_pb2.STORE_JOB_STATE_FAILED:
            raise from_code(job.code, job.message, reason=job.reason, field=job.field)

    def _model(self, name: str) -> model_pb2.Model | None:
        """A model as its hosts report it, its card and its workers as its workers do."""
        now = self._clock()
        served, hosted = self.table.get(name, now), self.hosts.model(name, now)
        if served is None:
            return hosted
        is_served = served.workers > 0
        if hosted is None:
            served.state = model_pb2.MODEL_STATE_READY if is_served else model_pb2.MODEL_STATE_LOADING
            return served
        hosted.workers = served.workers
        if is_served:
            hosted.state, hosted.reason = model_pb2.MODEL_STATE_READY, ""
        return hosted

    def _why_not(self, name: str) -> NotFound | Unavailable:
        if not self.table.digests() and not self.hosts.names(self._clock()):
            # A gateway that has just begun, on a poor network: the model may well be there.
            message = "no worker has told this gateway of its models yet"
            return Unavailable(message, reason="NO_MODELS", retry_delay_s=1.0)
        if self.table.get(name, self._clock()) is None:
            message = (
                f"there is no model {name[:200]!r}: ListModels, or GET /v1/models, tells which there are"
            )
            return NotFound(message, reason="UNKNOWN_MODEL")
        return Unavailable(f"no worker serves the model {name!r} now", reason="NO_WORKER", retry_delay_s=2.0)

    async def _check_nats(self) -> None:
        """Heartbeats that do not come say nothing of the workers while NATS is away."""
        try:
            await self._bus.check_connection()
        except Unavailable as error:
            message = f"the gateway does not know which models are served: {error.message}"
            raise Unavailable(message, reason=error.reason, retry_delay_s=2.0) from None

    def _restart_listening(self) -> None:
        self._listening_since = self._clock()

    async def _on_host(self, message: Message) -> None:
        try:
            status = self._host_statuses.parse(message.data, message.subject)
            self.hosts.note(status, self._clock())
        except InvalidArgument as error:
            self._bad.note("host", error, subject=message.subject)
        else:
            self.table.keep_known(status.host_id, {hosted.card.name for hosted in status.models})
            self._reported.set()

    async def _on_status(self, message: Message) -> None:
        try:
            status = self._statuses.parse(message.data, message.subject)
            self._known.admit(status.worker_id, self._clock())
        except InvalidArgument as error:
            self._bad.note("heartbeat", error, subject=message.subject)
            return
        now = self._clock()
        self.table.note(status, now)
        self.table.forget_old(now)
        self._seen = {digest for digest in self._seen if self.table.has_digest(digest)}
        for digest in sorted({card.digest for card in status.models} - self._seen - {""}):
            if len(self._seen) < _MOST_AHEAD:
                self._seen.add(digest)
                self._on_model(digest)
        self._reported.set()
