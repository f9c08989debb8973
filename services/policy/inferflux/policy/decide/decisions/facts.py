"""Facts that a decision is about, and decisions. No I/O, no clock."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from inferflux.common.contract.callers.scopes import Scope
from inferflux.common.contract.checks import check_count, check_text
from inferflux.common.contract.errors import InvalidArgument
from inferflux.policy.decide.roles import MAX_ROLES_OF_A_KEY
from inferflux.v1 import policy_pb2

if TYPE_CHECKING:
    from inferflux.policy.decide.admission import Holder

_MAX_METHOD_BYTES = 128
_MAX_NAME_BYTES = 64
# Of an issuer or a subject: tokens as a whole are bounded.
_MAX_CLAIM_BYTES = 16 << 10


class Step(StrEnum):
    """When a backend is asked."""

    ADMIT = "admit"
    """Before the body of a call is read."""
    RESERVE = "reserve"
    """Before a request is queued."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A caller, and the call that it wants to make. Equal facts get equal decisions.

    Attributes:
        method: `InferenceService/Chat`, or `POST /v1/chat/completions`.
        scope: that the method needs; "" in `reserve`.
        scopes: those that the caller has, sorted.
        roles: of the caller, sorted.
        issuer: of the caller's token; "" for one with an API key.
        subject: of the caller's token, as its issuer names it; "" as before.
        model: "" where it is not known, as in `admit`. So are the next three: 0 there.
        priority: that the request gets.
        prompt_tokens: of the prompt.
        max_tokens: the most that it may generate.
        text: of the prompt; None unless a backend is to see it.
    """

    step: Step
    method: str
    tenant: str
    key_id: str
    scopes: tuple[str, ...]
    roles: tuple[str, ...]
    issuer: str = ""
    subject: str = ""
    scope: str = ""
    model: str = ""
    priority: int = 0
    prompt_tokens: int = 0
    max_tokens: int = 0
    text: str | None = None

    def cache_key(self) -> Hashable:
        """Equal for equal facts. It has the hash of a text instead of the text."""
        if self.text is None:
            return self
        digest = hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).digest()
        return replace(self, text=None), digest


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of a backend.

    Attributes:
        reason: why it is refused, in the backend's words.
    """

    is_permitted: bool
    reason: str = ""


PERMITTED = Decision(is_permitted=True)


class BackendFailed(Exception):
    """A backend has not decided; the text says why, for operators."""


class Backend(Protocol):
    """Something that decides."""

    @property
    def name(self) -> str: ...

    async def decide(self, facts: Facts) -> Decision:
        """Raises:
        BackendFailed: there is no decision.
        """
        ...


def facts_of_call(holder: Holder, scope: Scope, method: str) -> Facts:
    """The facts of a call that is to be admitted."""
    return Facts(
        step=Step.ADMIT,
        method=method,
        tenant=holder.tenant,
        key_id=holder.key_id,
        scopes=_sorted(holder.access.scopes),
        roles=_sorted(holder.key.roles),
        issuer=holder.identity.get("issuer", ""),
        subject=holder.identity.get("subject", ""),
        scope=scope.value,
    )


def facts_of_reservation(request: policy_pb2.ReserveRequest) -> Facts:
    """The facts of a request that is to be queued, without its text. Its own fields are checked already.

    Raises:
        InvalidArgument: what the call was admitted with is wrong.
    """
    given = request.facts
    parse_method(given.method, field="facts.method")
    _check_names(given.scopes, len(Scope), "facts.scopes")
    _check_names(given.roles, MAX_ROLES_OF_A_KEY, "facts.roles")
    check_text(given.issuer, _MAX_CLAIM_BYTES, "facts.issuer")
    check_text(given.subject, _MAX_CLAIM_BYTES, "facts.subject")
    return Facts(
        step=Step.RESERVE,
        method=given.method,
        tenant=request.tenant,
        key_id=request.key_id,
        scopes=_sorted(given.scopes),
        roles=_sorted(given.roles),
        issuer=given.issuer,
        subject=given.subject,
        model=request.model,
        priority=request.priority,
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
    )


def to_message(facts: Facts) -> policy_pb2.DecisionFacts:
    """The facts that a gateway sends again when it reserves."""
    return policy_pb2.DecisionFacts(
        method=facts.method,
        scopes=facts.scopes,
        roles=facts.roles,
        issuer=facts.issuer,
        subject=facts.subject,
    )


def parse_method(method: str, *, field: str = "method") -> str:
    """Raises:
    InvalidArgument: it is not printable ASCII, or too long.
    """
    check_text(method, _MAX_METHOD_BYTES, field)
    if not (method.isascii() and method.isprintable()):
        raise InvalidArgument("a method is printable ASCII", field=field)
    return method


def _check_names(names: Collection[str], most: int, field: str) -> None:
    check_count(names, most, field)
    for i, name in enumerate(names):
        check_text(name, _MAX_NAME_BYTES, f"{field}[{i}]")


def _sorted(names: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(names))
