"""Checks of prompts against guardrails, and the sets that an answer is held to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from inferflux.common.calls import grpc_metadata
from inferflux.common.contract.errors import Aborted, PermissionDenied
from inferflux.common.text.guardrails.compiled import CompiledRules, Finding, Kind, check_all
from inferflux.common.text.guardrails.refusals import CONTENT_FILTER, PROMPT_TOO_LARGE, TEXT_NEEDED
from inferflux.v1 import guardrails_pb2, policy_pb2

from .sets import GuardrailSets
from .store import GuardrailStore, Index, Name

# Texts that take longer are looked at beside the event loop. A step is one of a pattern, as RE2 compiles it,
# at one character: up to 2 ns, and more on a busy machine.
_LONG = 8_000
_LONG_STEPS = 500_000
# Of rules in one answer, at the least: gRPC takes messages of 4 MiB, and a set has at most 1 MiB.
_ENOUGH_BYTES = 2 << 20

Version = guardrails_pb2.GuardrailsVersion


class PromptGuard:
    """Asked in Reserve, before anything is reserved."""

    def __init__(self, sets: GuardrailSets, store: GuardrailStore) -> None:
        self._sets = sets
        self._store = store

    async def index(self) -> Index:
        return await self._sets.index()

    async def check(self, request: policy_pb2.ReserveRequest) -> list[Version]:
        """Let a prompt pass; the sets that its answer is held to.

        Raises:
            PermissionDenied: a rule is broken; `x-inferflux-guardrail` says which.
            Aborted: the text is needed, and the request does not have it.
            Unavailable: the store does not answer, or a set cannot be used.
        """
        index = await self._sets.index()
        keys = index.holding(request.tenant, request.model)
        if not keys:
            return []
        sets = await self._sets.compiled(keys)
        if not request.HasField("text") and any(each.rules.needs_text for each in sets):
            raise Aborted("guardrails need the text of the prompt", reason=TEXT_NEEDED)
        finding = await self.find(sets, request.text, request.prompt_tokens)
        if finding is not None:
            raise refusal(finding)
        streams = index.for_streams(request.tenant, request.model)
        return [Version(tenant=k.tenant, model=k.model, version=k.version) for k in streams]

    async def find(self, sets: Sequence[CompiledRules], text: str, n_tokens: int) -> Finding | None:
        """The first rule that a prompt breaks."""
        if len(text) <= _LONG and len(text) * sum(each.n_steps for each in sets) <= _LONG_STEPS:
            return check_all(sets, text, n_tokens)
        return await asyncio.to_thread(check_all, sets, text, n_tokens)

    async def for_streams(
        self, request: guardrails_pb2.GetStreamGuardsRequest
    ) -> guardrails_pb2.GetStreamGuardsResponse:
        """The sets that answers are held to; rules of those that are not known, as many as fit."""
        keys = (await self._sets.index()).for_streams(request.tenant, request.model)
        known = {(each.tenant, each.model, each.version) for each in request.known}
        answer = guardrails_pb2.GetStreamGuardsResponse()
        n_bytes = 0
        for key in keys:
            made = answer.guardrails.add(tenant=key.tenant, model=key.model, version=key.version)
            if key in known or n_bytes >= _ENOUGH_BYTES:
                continue
            (rules,) = await self._store.rules([Name(key.tenant, key.model)])
            if rules is not None:
                made.rules.CopyFrom(rules)
                n_bytes += rules.ByteSize()
        return answer


def refusal(finding: Finding) -> PermissionDenied:
    """The error of a prompt that breaks a rule: it leaves out the rule's text."""
    if finding.kind is Kind.CHARACTERS:
        message = f"guardrails let prompts of at most {finding.most} characters pass"
    elif finding.kind is Kind.TOKENS:
        message = f"guardrails let prompts of at most {finding.most} tokens pass"
    else:
        message = "guardrails do not let this prompt pass"
    is_size = finding.kind in (Kind.CHARACTERS, Kind.TOKENS)
    error = PermissionDenied(message, reason=PROMPT_TOO_LARGE if is_size else CONTENT_FILTER)
    error.headers = {grpc_metadata.GUARDRAIL: ascii_name(finding.name)}
    return error


def ascii_name(name: str) -> str:
    """A rule's name as a header may have it: names of models have any letters."""
    return name.encode("ascii", "backslashreplace").decode()
