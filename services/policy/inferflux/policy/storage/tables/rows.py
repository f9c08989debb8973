"""Keys, roles, limits and guardrails as rows of a table. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from inferflux.policy.decide.guardrails.store import Name, Rules, Summary
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.limits.rules import RateLimit
from inferflux.policy.decide.roles import Role
from inferflux.policy.storage.table import GUARDRAILS, KEY, LIMIT, ROLE, RULES, Row


def key_row(record: ApiKeyRecord) -> tuple[Row, str]:
    return Row(KEY, record.digest), json.dumps(record.fields())


def moved_row(digest: str, *, to: str, until_unix_ms: int) -> tuple[Row, str]:
    """The row of a secret before a rotation."""
    return Row(KEY, digest), json.dumps({"moved_to": to, "until": until_unix_ms})


def key_of(digest: str, value: str) -> ApiKeyRecord | None:
    """The key; None for a secret before a rotation."""
    fields: Mapping[str, str] = json.loads(value)
    return None if "moved_to" in fields else ApiKeyRecord.from_fields(digest, fields)


def moved_to(value: str, *, now_unix_ms: int) -> str | None:
    """The present digest, for the row of a secret before a rotation; None when it is not valid any more."""
    fields: Mapping[str, Any] = json.loads(value)
    return str(fields["moved_to"]) if int(fields.get("until", 0)) > now_unix_ms else None


def role_row(role: Role) -> tuple[Row, str]:
    return Row(ROLE, role.name), role.to_json()


def limit_row(rule: RateLimit) -> tuple[Row, str]:
    return Row(LIMIT, rule.subject), json.dumps({"limits": dict(rule.limits), "version": rule.version})


def limit_of(subject: str, value: str) -> RateLimit:
    fields: Mapping[str, Any] = json.loads(value)
    return RateLimit(subject, {name: int(n) for name, n in fields["limits"].items()}, int(fields["version"]))


def summary_row(name: Name, summary: Summary) -> tuple[Row, str]:
    return Row(GUARDRAILS, name.text), _message(summary)


def rules_row(name: Name, rules: Rules) -> tuple[Row, str]:
    return Row(RULES, name.text), _message(rules)


def summary_of(value: str) -> Summary:
    return json_format.Parse(value, Summary(), ignore_unknown_fields=True)


def rules_of(value: str) -> Rules:
    """Fields that this version does not know are an error: rules are not to be weakened."""
    return json_format.Parse(value, Rules())


def _message(message: Rules | Summary) -> str:
    return json.dumps(json_format.MessageToDict(message, preserving_proto_field_name=True))
