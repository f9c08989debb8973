"""A document and what it stands for: keys, roles, limits and guardrails by name. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.models.model_names import parse_patterns
from inferflux.common.contract.requests.worker_pools import parse_pools
from inferflux.common.text.guardrails.rules import RuleSet
from inferflux.policy.decide import keys
from inferflux.policy.decide.guardrails.store import Name, Rules
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.limits.rules import RateLimit
from inferflux.policy.decide.roles import Role, parse_role_names
from inferflux.policy.operator.guardrail_admin import checked, parse_name
from inferflux.policy.operator.limit_admin import message_of as limit_message
from inferflux.policy.operator.limit_admin import parse_rate_limit
from inferflux.policy.operator.role_admin import message_of as role_message
from inferflux.policy.operator.role_admin import parse_role
from inferflux.v1 import guardrails_pb2, policy_pb2

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

FORMAT = 1

_SHA256 = re.compile(r"[0-9a-f]{64}")

_Item = TypeVar("_Item")
_Message = TypeVar("_Message")


@dataclass(frozen=True, slots=True)
class GuardrailSet:
    """A set of guardrails.

    Attributes:
        parsed: the same rules, where they were checked.
    """

    name: Name
    rules: Rules
    version: int
    parsed: RuleSet = field(default_factory=RuleSet, compare=False)


@dataclass(frozen=True, slots=True)
class PolicyState:
    """Settings of administrators, by name. A key of a document may have no digest."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    rate_limits: Mapping[str, RateLimit] = field(default_factory=dict)
    guardrails: Mapping[str, GuardrailSet] = field(default_factory=dict)
    keys: Mapping[str, ApiKeyRecord] = field(default_factory=dict)


def to_document(state: PolicyState, *, with_hashes: bool, now_ms: int) -> policy_pb2.PolicyDocument:
    """Everything that is set.

    Args:
        with_hashes: of the keys' secrets.
        now_ms: in ms since 1970.
    """
    document = policy_pb2.PolicyDocument(
        format=FORMAT,
        roles=map(role_message, state.roles.values()),
        rate_limits=map(limit_message, state.rate_limits.values()),
        api_keys=[_key_message(key, with_hash=with_hashes) for key in state.keys.values()],
    )
    for each in state.guardrails.values():
        document.guardrails.add(
            tenant=each.name.tenant, model=each.name.model, rules=each.rules, version=each.version
        )
    document.exported_at.FromMilliseconds(now_ms)
    return document


def parse_document(document: policy_pb2.PolicyDocument, *, now_ms: int) -> PolicyState:
    """Read a document. Takes long for many guardrails.

    Raises:
        InvalidArgument: a field is wrong, or two items have one name.
    """
    if document.format != FORMAT:
        message = f"document.format is {document.format}, and this policy service reads format {FORMAT}"
        raise InvalidArgument(message, field="document.format")
    return PolicyState(
        roles=_named(document.roles, _parse_role, "roles"),
        rate_limits=_named(document.rate_limits, _parse_limit, "rate_limits"),
        guardrails=_named(document.guardrails, _parse_guardrails, "guardrails"),
        keys=_named(document.api_keys, lambda key, at: _parse_key(key, at, now_ms=now_ms), "api_keys"),
    )


def _named(
    messages: Iterable[_Message], parse: Callable[[_Message, str], tuple[str, _Item]], of: str
) -> Mapping[str, _Item]:
    found: dict[str, _Item] = {}
    for i, message in enumerate(messages):
        at = f"document.{of}[{i}]"
        name, item = parse(message, at)
        if name in found:
            raise InvalidArgument(f"{at}: {name} is in the document twice", field=at)
        found[name] = item
    return found


def _parse_role(message: policy_pb2.Role, at: str) -> tuple[str, Role]:
    role = parse_role(message, field=at)
    return role.name, role


def _parse_limit(message: policy_pb2.RateLimit, at: str) -> tuple[str, RateLimit]:
    rule = parse_rate_limit(message, field=at)
    return rule.subject, rule


def _parse_guardrails(message: guardrails_pb2.Guardrails, at: str) -> tuple[str, GuardrailSet]:
    name = parse_name(message.tenant, message.model, field=f"{at}.")
    rules = checked(message.rules, f"{at}.rules")
    return name.text, GuardrailSet(name, message.rules, message.version, rules)


def _parse_key(message: policy_pb2.StoredApiKey, at: str, *, now_ms: int) -> tuple[str, ApiKeyRecord]:
    key_id = keys.parse_key_id(message.key_id, field=f"{at}.key_id")
    digest = message.secret_sha256
    if digest and _SHA256.fullmatch(digest) is None:
        raise InvalidArgument("a hash is 64 hex digits in lower case", field=f"{at}.secret_sha256")
    record = ApiKeyRecord(
        digest=digest,
        own_key_id="" if digest and keys.key_id_of(digest) == key_id else key_id,
        tenant=keys.parse_tenant(message.tenant, field=f"{at}.tenant"),
        name=keys.parse_name(message.name, field=f"{at}.name"),
        scopes=keys.parse_scopes(message.scopes, field=f"{at}.scopes"),
        roles=parse_role_names(message.roles, field=f"{at}.roles"),
        models=parse_patterns(message.models, field=f"{at}.models"),
        worker_pools=parse_pools(message.worker_pools, field=f"{at}.worker_pools"),
        max_priority=(
            keys.parse_max_priority(message.max_priority, field=f"{at}.max_priority")
            if message.HasField("max_priority")
            else None
        ),
        cache_scope=keys.parse_cache_scope(message.cache_scope, field=f"{at}.cache_scope"),
        skips_answer_cache=message.skip_answer_cache,
        is_deterministic=message.deterministic,
        created_unix_ms=(
            _ms(message.created_at, f"{at}.created_at") if message.HasField("created_at") else now_ms
        ),
        expires_unix_ms=(
            _ms(message.expires_at, f"{at}.expires_at") if message.HasField("expires_at") else None
        ),
        version=message.version,
    )
    return key_id, record


def _ms(at: Timestamp, field: str) -> int:
    """In ms since 1970."""
    try:
        ms: int = at.ToMilliseconds()
    except (ValueError, OverflowError):
        raise InvalidArgument(f"{field} is no time", field=field) from None
    if ms < 0:
        raise InvalidArgument(f"{field} is before 1970", field=field)
    return ms


def _key_message(key: ApiKeyRecord, *, with_hash: bool) -> policy_pb2.StoredApiKey:
    message = policy_pb2.StoredApiKey(
        key_id=key.key_id,
        tenant=key.tenant,
        name=key.name,
        scopes=key.scopes,
        roles=key.roles,
        models=key.models,
        worker_pools=key.worker_pools,
        max_priority=key.max_priority,
        cache_scope=key.cache_scope,
        skip_answer_cache=key.skips_answer_cache,
        deterministic=key.is_deterministic,
        version=key.version,
        secret_sha256=key.digest if with_hash else "",
    )
    message.created_at.FromMilliseconds(key.created_unix_ms)
    if key.expires_unix_ms is not None:
        message.expires_at.FromMilliseconds(key.expires_unix_ms)
    return message


def state_of(
    roles: Sequence[Role],
    rate_limits: Sequence[RateLimit],
    guardrails: Sequence[GuardrailSet],
    all_keys: Sequence[ApiKeyRecord],
) -> PolicyState:
    """Items that are stored, in this order; without roles that every InferFlux has, and without a key's roles
    that are gone: these give it nothing.
    """
    names = {role.name for role in roles}
    return PolicyState(
        roles={role.name: role for role in roles if not role.is_builtin},
        rate_limits={rule.subject: rule for rule in rate_limits},
        guardrails={each.name.text: each for each in guardrails},
        keys={
            key.key_id: replace(key, roles=tuple(name for name in key.roles if name in names))
            for key in all_keys
        },
    )
