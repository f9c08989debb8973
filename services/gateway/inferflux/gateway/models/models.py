"""The models that are served or can be, learnt from the heartbeats of workers and the reports of hosts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from inferflux.common.bus import Bus, Message, Subscription
from inferflux.common.contract import subjects
from inferflux.common.contract.checks import check_model_name
from inferflux.common.contract.errors import InvalidArgument, NotFound, Unavailable
from inferflux.common.contract.known_workers import KnownWorkers
from inferflux.common.contract.messages.heartbeats import parse_without_requests
from inferflux.common.contract.messages.hosts import parse_status as parse_host
from inferflux.common.contract.messages.repeats import Repeats
from inferflux.common.contract.models.model_roles import name_of
from inferflux.common.contract.requests import adapters
from inferflux.common.process.bad_messages import BadMessages
from inferflux.common.process.tasks import is_set_within
from inferflux.gateway.policy.caller import Caller
from inferflux.v1 import cluster_pb2, model_pb2

from .hosts import HostDirectory
from .model_health import ModelTally
from .splits import Splits, Sticky
from .table import ModelTable

# Models whose tokenizers are loaded ahead of the first request. Those of further ones are loaded by it.
_MOST_AHEAD = 64
# Every live worker sends a heartbeat within this time.
HEARTBEAT_S = 1.0
_MARGIN_S = 0.3
# Models that an error names.
_MOST_TOLD = 8


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
            await self.reports_within(left_s)
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

    async def reports_within(self, limit_s: float) -> None:
        """Return when a worker or a host has reported, and after at most `limit_s` seconds."""
        self._reported.clear()
        await is_set_within(self._reported, limit_s)

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
