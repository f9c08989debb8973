"""The limits of keys, tenants and models: what they may be, and what a caller over one is told. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from inferflux.common.contract.checks import check_model_name, check_range
from inferflux.common.contract.errors import InvalidArgument, ResourceExhausted
from inferflux.policy.decide.keys import parse_holder_id, parse_tenant

EACH = "*"
NAMES = (
    "requests_per_minute",
    "tokens_per_minute",
    "requests_per_day",
    "tokens_per_day",
    "concurrent_requests",
)
# A float still holds them exactly, and so does Lua.
MOST = 10**12

_IN_WORDS = {
    "requests_per_minute": ("requests", "in a minute"),
    "tokens_per_minute": ("tokens", "in a minute"),
    "requests_per_day": ("requests", "today"),
    "tokens_per_day": ("tokens", "today"),
    "concurrent_requests": ("requests", "at a time"),
}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The limits of a subject.

    Attributes:
        subject: `key:KEY_ID`, `tenant:TENANT` or `model:MODEL`. `*` as the name stands for each that has no
            limits of its own.
        limits: of those in `NAMES` that are limited.
        version: rises with each change; 0 for limits that are not stored.
    """

    subject: str
    limits: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    version: int = 0


def key_subject(key_id: str) -> str:
    return f"key:{key_id}"


def tenant_subject(tenant: str) -> str:
    return f"tenant:{tenant}"


def model_subject(model: str) -> str:
    return f"model:{model}"


def kind_subject(subject: str) -> str:
    """The subject whose limits hold for this one where it has none of its own."""
    return f"{subject.partition(':')[0]}:{EACH}"


def rule_of(subject: str, rules: Iterable[RateLimit]) -> RateLimit:
    """The limits that hold for a subject: its own, those of its kind, or none.

    Args:
        rules: those of the subject and of its kind that there are.
    """
    found = {rule.subject: rule for rule in rules}
    return found.get(subject) or found.get(kind_subject(subject)) or RateLimit(subject)


def parse_subject(text: str, *, field: str = "subject") -> str:
    """Raises:
    InvalidArgument: it is none of the three kinds, or its name could be none of that kind.
    """
    kind, colon, name = text.partition(":")
    if not colon or kind not in ("key", "tenant", "model"):
        message = (
            "a subject is key:KEY_ID, tenant:TENANT or model:MODEL; * as the name is for each of the kind"
        )
        raise InvalidArgument(message, field=field)
    if name == EACH:
        return text
    if kind == "key":
        parse_holder_id(name, field=field)
    elif kind == "tenant":
        parse_tenant(name, field=field)
    else:
        check_model_name(name, field=field)
        if not name.isprintable():
            raise InvalidArgument("this is no name of a model", field=field)
    return text


def parse_limits(given: Mapping[str, int], *, field: str) -> Mapping[str, int]:
    """Check limits, and leave out those that are 0.

    Raises:
        InvalidArgument: one is out of range.
    """
    for name, value in given.items():
        check_range(value, 0, MOST, f"{field}.{name}")
    return {name: value for name, value in given.items() if value}


def over_limit(refused: Mapping[str, Any], *, asked_tokens: int) -> ResourceExhausted:
    """The error of a caller that is over a limit.

    Args:
        refused: of the limiter: `subject`, `name`, `limit`, `used`, `wait_ms`.
        asked_tokens: prompt and the most that may be generated, together; 0 where they are not known yet.
    """
    name, limit, wait_ms = str(refused["name"]), int(refused["limit"]), int(refused["wait_ms"])
    what, when = _IN_WORDS[name]
    kind, _, whose = str(refused["subject"]).partition(":")
    may = f"{kind} {whose} may have {limit} {what} {when}"
    if wait_ms < 0:
        message = f"{may}; this request alone asks for {asked_tokens}: lower max_tokens or shorten the prompt"
        return ResourceExhausted(message, reason="REQUEST_BEYOND_LIMIT", retry_delay_s=None)
    used = int(refused["used"])
    left = (
        f"{used} are used"
        if what == "requests" or not asked_tokens
        else f"{used} are used, and this asks for {asked_tokens}"
    )
    reason = "QUOTA_USED_UP" if name.endswith("_per_day") else "RATE_LIMITED"
    return ResourceExhausted(f"{may}; {left}", reason=reason, retry_delay_s=wait_ms / 1000)
