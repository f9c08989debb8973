"""The guardrails that answers are held to: fetched from policy once for each version, and compiled once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.contract.messages.chunks import parse_chunk
from inferflux.common.text.guardrails.cache import CompiledCache, SetKey
from inferflux.common.text.guardrails.compiled import CompiledRules
from inferflux.common.text.guardrails.rules import parse_rules
from inferflux.common.text.guardrails.stream import StreamGuard
from inferflux.v1 import guardrails_pb2, tokens_pb2

from .chunk_guard import ChunkGuard

Version = guardrails_pb2.GuardrailsVersion


class FetchesGuards(Protocol):
    """Policy, as answers' guardrails are asked of it; `Admission` in `gateway/policy/` is it."""

    async def stream_guards(
        self, request: guardrails_pb2.GetStreamGuardsRequest
    ) -> guardrails_pb2.GetStreamGuardsResponse: ...


class StreamGuards:
    """Holds the stream guards of this gateway."""

    def __init__(self, policy: FetchesGuards) -> None:
        self._policy = policy
        self._compiled = CompiledCache()
        self._fetching = asyncio.Lock()

    async def of_reservation(self, tenant: str, model: str, versions: Sequence[Version]) -> ChunkGuard | None:
        """For the answer to a request that policy has just let pass with these sets; None without any.

        Raises:
            Unavailable: policy does not answer, or a set cannot be used.
        """
        if not versions:
            return None
        found = [self._compiled.get(_key(each)) for each in versions]
        if None in found:
            return await self.of(tenant, model)
        return _begin([rules for rules in found if rules is not None])

    async def of(self, tenant: str, model: str) -> ChunkGuard | None:
        """For an answer to a tenant's request; None if no set holds now.

        Args:
            model: "" where it is not known: then the sets of every model hold.

        Raises:
            Unavailable: policy does not answer, or a set cannot be used.
        """
        async with self._fetching:
            return _begin(await self._fetch(tenant, model))

    async def _fetch(self, tenant: str, model: str) -> list[CompiledRules]:
        """The sets that hold. Policy sends the rules of some at a time."""
        sets = self._compiled.of_tenant(tenant)
        while True:
            known = [Version(tenant=key.tenant, model=key.model, version=key.version) for key in sets]
            request = guardrails_pb2.GetStreamGuardsRequest(tenant=tenant, model=model, known=known)
            answer = await self._policy.stream_guards(request)
            new = [each for each in answer.guardrails if each.HasField("rules") and _key(each) not in sets]
            for each in new:
                compiled = await asyncio.to_thread(_compiled, each)
                self._compiled.put(_key(each), compiled)
                sets[_key(each)] = compiled
            found = [sets.get(_key(each)) for each in answer.guardrails]
            if None not in found:
                return [rules for rules in found if rules is not None]
            if not new:
                raise Unavailable("policy did not send the guardrails", reason="GUARDRAILS_UNUSABLE")


def model_told_by(messages: Iterable[bytes]) -> str:
    """The model that chunks name; "" where none does."""
    return next((chunk.model for chunk in _good(messages) if chunk.model), "")


def attempt_told_by(messages: Iterable[bytes]) -> str:
    """The attempt that a chunk names, which the first and the last one do; "" where none does."""
    return next((chunk.attempt_id for chunk in _good(messages) if chunk.attempt_id), "")


def _good(messages: Iterable[bytes]) -> Iterator[tokens_pb2.TokenChunk]:
    for data in messages:
        with contextlib.suppress(InvalidArgument):
            yield parse_chunk(data)


def _begin(sets: Sequence[CompiledRules]) -> ChunkGuard | None:
    return ChunkGuard(StreamGuard(sets)) if sets else None


def _key(each: Version | guardrails_pb2.Guardrails) -> SetKey:
    return SetKey(each.tenant, each.model, each.version)


def _compiled(each: guardrails_pb2.Guardrails) -> CompiledRules:
    """Raises:
    Unavailable: it cannot be used here.
    """
    name = _key(each).name
    try:
        return CompiledRules(parse_rules(each.rules), name)
    except InvalidArgument as error:
        message = f"the guardrails {name} cannot be used here: {error.message}"
        raise Unavailable(message, reason="GUARDRAILS_UNUSABLE") from None
