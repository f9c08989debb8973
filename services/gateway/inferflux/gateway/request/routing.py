"""The model that a request means, and whether its caller may use it."""

from __future__ import annotations

from typing import Protocol

from inferflux.api.errors import without_keys
from inferflux.common.contract import checks
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests import adapters
from inferflux.common.process import logs
from inferflux.gateway.metrics import GatewayMetrics
from inferflux.gateway.policy.caller import Caller
from inferflux.v1 import model_pb2

log = logs.get()

Cards = tuple[model_pb2.ModelCard, model_pb2.AdapterCard | None]


class ModelCards(Protocol):
    """The served models, as `inferflux.gateway.models.models.ModelRegistry` knows them."""

    def is_split(self, name: str) -> bool: ...

    def split_for(self, alias: str, caller: Caller) -> str: ...

    async def settled(self) -> None: ...

    async def meant(self, name: str, role: model_pb2.ModelRole.ValueType, caller: Caller) -> str: ...

    async def choose(self, name: str) -> tuple[str, str]: ...

    async def card(self, name: str) -> model_pb2.ModelCard: ...

    def adapter(self, model: str, name: str) -> model_pb2.AdapterCard: ...


class Routing:
    """Finds the cards of models. Every method raises InferFluxErrors: the name means nothing, or nothing that
    the caller may use.
    """

    def __init__(self, models: ModelCards, metrics: GatewayMetrics) -> None:
        self._models = models
        self._metrics = metrics

    async def cards(self, caller: Caller, name: str, adapter: str = "") -> Cards:
        """The cards of the model and of the adapter that a name means.

        Args:
            adapter: that is asked for beside the name.
        """
        if not name:
            name = await self._models.meant("", model_pb2.MODEL_ROLE_GENERATION, caller)
        if self._models.is_split(name):
            await self._models.settled()
            name = self._models.split_for(name, caller)
        model, named = await self._models.choose(name)
        checks.check_model_name(model)
        if adapter:
            adapters.check_name(adapter, "adapter")
            if named not in ("", adapter):
                message = f"the model's name asks for the adapter {named!r}, and adapter for {adapter!r}"
                raise InvalidArgument(message, field="adapter")
        chosen = named or adapter
        caller.check_model(model, chosen)
        card = await self._models.card(model)
        return card, self._models.adapter(model, chosen) if chosen else None

    async def counted(self, caller: Caller, name: str, adapter: str = "") -> Cards:
        """As `cards`, of a request that is counted among those of its model."""
        card, chosen = await self.cards(caller, name, adapter)
        by_name = chosen.name if chosen is not None else ""
        by = self._metrics.count_route(name, card, by_name, is_split=self._models.is_split(name))
        # What another name stands for may change. A model's own is in the audit trail.
        say = log.debug if by == "name" else log.info
        say("a request is routed", asked=without_keys(name), model=card.name, adapter=by_name, by=by)
        return card, chosen

    async def without_adapter(self, caller: Caller, name: str) -> model_pb2.ModelCard:
        """As `counted`, of a request that embeds.

        Raises:
            InvalidArgument: the name means an adapter.
        """
        card, adapter = await self.counted(caller, name)
        if adapter is not None:
            raise InvalidArgument("adapters are for models that generate", field="model")
        return card
