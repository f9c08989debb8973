"""Guardrails, as administrators list, set, delete and check them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inferflux.common.calls.audit.policy_changes import counts
from inferflux.common.contract.checks import MAX_TOKENS, check_model_name, check_range
from inferflux.common.contract.errors import InvalidArgument, NotFound
from inferflux.common.contract.pages import check_page_size, page_after
from inferflux.common.process import logs
from inferflux.common.text.guardrails.compiled import CompiledRules, Finding
from inferflux.common.text.guardrails.rules import RuleSet, parse_rules
from inferflux.common.text.guardrails.stream import BLOCK
from inferflux.policy.decide import keys
from inferflux.policy.decide.admission import Holder
from inferflux.policy.decide.guardrails.prompts import PromptGuard
from inferflux.policy.decide.guardrails.sets import GuardrailSets
from inferflux.policy.decide.guardrails.store import GuardrailStore, Name, Rules, Summary, Versions
from inferflux.v1 import guardrails_pb2

# Steps of a set's patterns times characters in which they are searched for, every `BLOCK` characters of an
# answer: some 10 ms of a gateway's event loop at the most.
MAX_STREAM_STEPS = 8_000_000

log = logs.get()


class GuardrailAdmin:
    """Guardrails, as administrators see them.

    Args:
        now_ms: the time, in ms since 1970.
    """

    def __init__(
        self, store: GuardrailStore, sets: GuardrailSets, prompts: PromptGuard, *, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._sets = sets
        self._prompts = prompts
        self._now_ms = now_ms

    async def list(
        self, request: guardrails_pb2.ListGuardrailsRequest
    ) -> guardrails_pb2.ListGuardrailsResponse:
        """Raises:
        InvalidArgument: a field is wrong.
        """
        check_page_size(request.page_size)
        after = parse_token(request.page_token) if request.page_token else None
        sets = (await self._store.index()).sets
        page, goes_on = page_after(sorted(sets), lambda name: name, after, request.page_size)
        return guardrails_pb2.ListGuardrailsResponse(
            guardrails=[sets[name] for name in page], next_page_token=page[-1].text if goes_on else ""
        )

    async def get(self, request: guardrails_pb2.GetGuardrailsRequest) -> guardrails_pb2.GetGuardrailsResponse:
        """Raises:
        InvalidArgument: there can be no such set.
        NotFound: there is none.
        """
        name = parse_name(request.tenant, request.model)
        summary = (await self._store.index()).sets.get(name)
        (rules,) = await self._store.rules([name])
        if summary is None or rules is None:
            raise NotFound(f"there are no guardrails {name.text}", reason="UNKNOWN_GUARDRAILS")
        return guardrails_pb2.GetGuardrailsResponse(
            guardrails=guardrails_pb2.Guardrails(
                tenant=name.tenant,
                model=name.model,
                rules=rules,
                version=summary.version,
                changed_at=summary.changed_at,
                changed_by=summary.changed_by,
            )
        )

    async def set(
        self, actor: Holder, request: guardrails_pb2.SetGuardrailsRequest
    ) -> tuple[guardrails_pb2.SetGuardrailsResponse, Versions]:
        """Returns the answer, and the set's versions.

        Raises:
            InvalidArgument: a field is wrong.
            Aborted: the set was changed meanwhile.
            ResourceExhausted: there are as many sets as there may be.
        """
        given = request.guardrails
        name = parse_name(given.tenant, given.model, field="guardrails.")
        rules = await asyncio.to_thread(checked, given.rules)
        summary, versions = await self.put(actor, name, given.rules, rules, version=given.version)
        return guardrails_pb2.SetGuardrailsResponse(guardrails=summary), versions

    async def put(
        self, actor: Holder, name: Name, given: Rules, rules: RuleSet, *, version: int
    ) -> tuple[guardrails_pb2.GuardrailsSummary, Versions]:
        """Write a set; returns it with its versions.

        Args:
            given: the rules as they are stored.
            rules: the same, which were checked.
            version: of the stored set; 0: whichever it has.

        Raises:
            Aborted: the set was changed meanwhile.
            ResourceExhausted: there are as many sets as there may be.
        """
        summary = self._summary(name, rules, actor.key_id)
        summary.version = version
        versions = await self._store.put(name, summary, given)
        summary.version = versions.now
        log.info("guardrails set", of=name.text, by=actor.key_id, **counts(given))
        return summary, versions

    async def delete(self, actor: Holder, request: guardrails_pb2.DeleteGuardrailsRequest) -> int:
        """Returns the version that it had.

        Raises:
            InvalidArgument: there can be no such set.
            NotFound: there is none.
            Aborted: it was changed meanwhile.
        """
        name = parse_name(request.tenant, request.model)
        before = await self._store.delete(name, version=request.version)
        log.info("guardrails deleted", of=name.text, by=actor.key_id)
        return before

    async def check(
        self, request: guardrails_pb2.CheckGuardrailsRequest
    ) -> guardrails_pb2.CheckGuardrailsResponse:
        """Raises:
        InvalidArgument: there can be no such tenant or model.
        Unavailable: a set cannot be used.
        """
        name = parse_name(request.tenant, request.model)
        check_range(request.tokens, 0, MAX_TOKENS, "tokens")
        sets = await self._sets.holding(name.tenant, name.model)
        finding = await self._prompts.find(sets, request.text, request.tokens)
        return guardrails_pb2.CheckGuardrailsResponse(finding=_message(finding) if finding else None)

    def _summary(self, name: Name, rules: RuleSet, key_id: str) -> Summary:
        summary = Summary(
            tenant=name.tenant,
            model=name.model,
            n_blocked=len(rules.blocked),
            n_patterns=len(rules.patterns),
            max_characters=rules.max_characters,
            max_tokens=rules.max_tokens,
            guards_stream=rules.guards_stream,
            changed_by=key_id,
        )
        summary.changed_at.FromMilliseconds(self._now_ms())
        return summary


def parse_name(tenant: str, model: str, *, field: str = "") -> Name:
    """Raises:
    InvalidArgument: there can be no such tenant or model; "" stands for every one.
    """
    if tenant:
        keys.parse_tenant(tenant, field=f"{field}tenant")
    if model:
        check_model_name(model, field=f"{field}model")
        if not model.isprintable():
            raise InvalidArgument("this is no name of a model", field=f"{field}model")
    return Name(tenant, model)


def parse_token(text: str) -> Name:
    """The name of the last set of a page.

    Raises:
        InvalidArgument: there can be no such set.
    """
    tenant, slash, model = text.partition("/")
    try:
        name = parse_name(tenant, model)
    except InvalidArgument:
        slash = ""
    if not slash:
        raise InvalidArgument("this page_token was not given by ListGuardrails", field="page_token")
    return name


def checked(message: Rules, field: str = "guardrails.rules") -> RuleSet:
    """The rules, which can be compiled. Takes long for many.

    Raises:
        InvalidArgument: they cannot be used.
    """
    rules = parse_rules(message, field)
    n_steps = CompiledRules(rules, field=field).n_steps * (rules.window + BLOCK)
    if rules.guards_stream and n_steps > MAX_STREAM_STEPS:
        what = (
            f"these patterns are too slow to hold answers to: {n_steps} steps for each {BLOCK} characters, "
            f"of at most {MAX_STREAM_STEPS}: count less far, as `.{{0,99}}`, or make stream_window smaller"
        )
        raise InvalidArgument(what, field=f"{field}.patterns")
    return rules


def _message(finding: Finding) -> guardrails_pb2.GuardrailFinding:
    tenant, _, model = finding.of.partition("/")
    return guardrails_pb2.GuardrailFinding(
        tenant=tenant, model=model, kind=finding.kind.value, index=finding.index
    )
