"""Fields of the audit line of a policy change: the request, and its result (pure).

Policy and gateways write the same, so that their lines can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from inferflux.v1 import guardrails_pb2, policy_pb2

# Of a text, and of a list, in a line: what is longer is refused in any case.
_MOST_CHARACTERS = 512
_MOST_ITEMS = 64

Fields = Mapping[str, object]

API_KEY, ROLE, RATE_LIMIT, GUARDRAILS = "api_key", "role", "rate_limit", "guardrails"
"""Kinds, as `PolicyChange.kind`."""


def asked(request: Message) -> Fields | None:
    """Fields of a requested change: `kind`, `name` and `action`, and what else it says, but no secret and no
    text of a guardrail; `if_version` where it names a version. None for a request that changes nothing.
    """
    describe = _ASKED.get(type(request))
    return None if describe is None else describe(request)


def became(response: Message) -> Fields:
    """Fields of a change's result, from its response: `version`, and the `name` of a key."""
    for kind in (API_KEY, ROLE, RATE_LIMIT, GUARDRAILS):
        if kind in response.DESCRIPTOR.fields_by_name:
            made = getattr(response, kind)
            name = {"name": made.key_id} if kind == API_KEY else {}
            return {"version": made.version, **name}
    return {}


def counts(rules: guardrails_pb2.GuardrailRules) -> Fields:
    """Fields of rules for log and audit lines: counts, and no text of the rules."""
    return {
        "n_blocked": len(rules.blocked),
        "n_patterns": len(rules.patterns),
        "max_characters": rules.max_characters,
        "max_tokens": rules.max_tokens,
        "guards_stream": rules.guards_stream,
        "look_alikes": rules.look_alikes,
        "ignores_accents": rules.ignores_accents,
    }


def _change(kind: str, action: str, name: str, *, if_version: int = 0, **more: object) -> dict[str, object]:
    named = {"if_version": if_version} if if_version else {}
    return {"kind": kind, "action": action, "name": _text(name), **named, **more}


def _text(text: str) -> str:
    return text[:_MOST_CHARACTERS]


def _texts(texts: Iterable[str]) -> list[str]:
    return [_text(text) for text, _ in zip(texts, range(_MOST_ITEMS), strict=False)]


def _create_key(request: policy_pb2.CreateApiKeyRequest) -> Fields:
    return _change(
        API_KEY,
        "create",
        "",
        of_tenant=_text(request.tenant),
        key_name=_text(request.name),
        scopes=_texts(request.scopes),
        roles=_texts(request.roles),
        models=_texts(request.models),
        worker_pools=_texts(request.worker_pools),
    )


# What says what a key may do.
_LISTS_OF_KEYS = ("scopes", "roles", "models", "worker_pools")


def _update_key(request: policy_pb2.UpdateApiKeyRequest) -> Fields:
    key = request.api_key
    fields = _texts(request.update_mask.paths)
    to: dict[str, object] = {name: _texts(getattr(key, name)) for name in _LISTS_OF_KEYS if name in fields}
    if "max_priority" in fields and key.HasField("max_priority"):
        to["max_priority"] = key.max_priority
    return _change(API_KEY, "update", key.key_id, if_version=key.version, fields=fields, **to)


def _rotate_key(request: policy_pb2.RotateApiKeyRequest) -> Fields:
    overlap_s = request.overlap_s
    return _change(API_KEY, "rotate", request.key_id, if_version=request.version, overlap_s=overlap_s)


def _revoke_key(request: policy_pb2.RevokeApiKeyRequest) -> Fields:
    return _change(API_KEY, "revoke", request.key_id, if_version=request.version)


def _set_role(request: policy_pb2.SetRoleRequest) -> Fields:
    role = request.role
    scopes, models = _texts(role.scopes), _texts(role.models)
    return _change(ROLE, "set", role.name, if_version=role.version, scopes=scopes, models=models)


def _delete_role(request: policy_pb2.DeleteRoleRequest) -> Fields:
    return _change(ROLE, "delete", request.name, if_version=request.version)


def _set_limits(request: policy_pb2.SetRateLimitRequest) -> Fields:
    given = request.rate_limit
    limits = {f.name: n for f, n in given.ListFields() if f.name not in ("subject", "version")}
    return _change(RATE_LIMIT, "set", given.subject, if_version=given.version, limits=limits)


def _delete_limits(request: policy_pb2.DeleteRateLimitRequest) -> Fields:
    return _change(RATE_LIMIT, "delete", request.subject, if_version=request.version)


def _set_guardrails(request: guardrails_pb2.SetGuardrailsRequest) -> Fields:
    given = request.guardrails
    name = f"{given.tenant}/{given.model}"
    return _change(GUARDRAILS, "set", name, if_version=given.version, **counts(given.rules))


def _delete_guardrails(request: guardrails_pb2.DeleteGuardrailsRequest) -> Fields:
    name = f"{request.tenant}/{request.model}"
    return _change(GUARDRAILS, "delete", name, if_version=request.version)


_ASKED: Final[Mapping[type[Message], Callable[[Any], Fields]]] = {
    policy_pb2.CreateApiKeyRequest: _create_key,
    policy_pb2.UpdateApiKeyRequest: _update_key,
    policy_pb2.RotateApiKeyRequest: _rotate_key,
    policy_pb2.RevokeApiKeyRequest: _revoke_key,
    policy_pb2.SetRoleRequest: _set_role,
    policy_pb2.DeleteRoleRequest: _delete_role,
    policy_pb2.SetRateLimitRequest: _set_limits,
    policy_pb2.DeleteRateLimitRequest: _delete_limits,
    guardrails_pb2.SetGuardrailsRequest: _set_guardrails,
    guardrails_pb2.DeleteGuardrailsRequest: _delete_guardrails,
}
