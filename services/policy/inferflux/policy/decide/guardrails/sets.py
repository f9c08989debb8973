"""The sets of rules that this process knows: which there are, and those of them that it has compiled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.text.guardrails.cache import CompiledCache, SetKey
from inferflux.common.text.guardrails.compiled import CompiledRules
from inferflux.common.text.guardrails.rules import parse_rules

from .store import MAX_AGE_S, GuardrailStore, Index, Name


class GuardrailSets:
    """Sets as the store has them now. Every method raises Unavailable when the store does not answer in
    time: nothing is assumed then.
    """

    def __init__(self, store: GuardrailStore) -> None:
        self._store = store
        self._compiled = CompiledCache()
        self._compiling = asyncio.Lock()

    async def index(self) -> Index:
        """The sets that there are."""
        return await self._store.index()

    async def holding(self, tenant: str, model: str) -> list[CompiledRules]:
        """The sets that hold for requests of a tenant and a model, the most general one first.

        Raises:
            Unavailable: one cannot be used here.
        """
        keys = (await self.index()).holding(tenant, model)
        return await self.compiled(keys) if keys else []

    async def compiled(self, keys: Sequence[SetKey]) -> list[CompiledRules]:
        """These sets, ready for use.

        Raises:
            Unavailable: one cannot be used here.
        """
        found = [self._compiled.get(key) for key in keys]
        if None not in found:
            return [rules for rules in found if rules is not None]
        async with self._compiling:
            return [self._compiled.get(key) or await self._compile(key) for key in keys]

    async def _compile(self, key: SetKey) -> CompiledRules:
        (rules,) = await self._store.rules([Name(key.tenant, key.model)])
        if rules is None:
            message = f"the guardrails {key.name} were deleted meanwhile"
            raise Unavailable(message, reason="GUARDRAILS_CHANGED", retry_delay_s=MAX_AGE_S)
        try:
            compiled = await asyncio.to_thread(CompiledRules, parse_rules(rules), key.name)
        except InvalidArgument as error:
            message = f"the guardrails {key.name} cannot be used here: {error.message}"
            raise Unavailable(message, reason="GUARDRAILS_UNUSABLE") from None
        self._compiled.put(key, compiled)
        return compiled
