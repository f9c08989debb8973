"""The layout that earlier versions of policy had in Redis, written as they wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import redis.asyncio

from inferflux.policy.decide.guardrails.store import Name, Rules, Summary
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.limits.rules import RateLimit
from inferflux.policy.decide.roles import Role

KEYS, GUARDRAILS = "inferflux:{keys}", "inferflux:{guardrails}"
NAMES = (f"{KEYS}:index", f"{KEYS}:roles", f"{KEYS}:bootstrapped", "inferflux:{limits}:rules")
GUARDRAIL_NAMES = tuple(f"{GUARDRAILS}:{name}" for name in ("revision", "versions", "summaries", "rules"))


@dataclass(frozen=True)
class Earlier:
    """Everything that an administrator had set.

    Attributes:
        guardrails: sets by their names, with versions in their summaries.
        marks: of first keys.
    """

    keys: Sequence[ApiKeyRecord] = ()
    roles: Sequence[Role] = ()
    limits: Sequence[RateLimit] = ()
    guardrails: Mapping[Name, tuple[Summary, Rules]] = field(default_factory=dict)
    marks: Sequence[str] = ()

    async def write(self, client: redis.asyncio.Redis) -> None:
        for record in self.keys:
            await client.hset(NAMES[0], record.key_id, record.digest)
            await client.hset(f"{KEYS}:key:{record.digest}", items=flat(record.fields()))
            if record.previous_digest:
                before = f"{KEYS}:key:{record.previous_digest}"
                await client.hset(before, "moved_to", record.digest)
                await client.pexpireat(before, record.previous_until_unix_ms)
        for role in self.roles:
            await client.hset(NAMES[1], role.name, role.to_json())
        for mark in self.marks:
            await client.sadd(NAMES[2], mark)
        for rule in self.limits:
            text = json.dumps({"limits": dict(rule.limits), "version": rule.version})
            await client.hset(NAMES[3], rule.subject, text)
        revision, versions, summaries, rules = GUARDRAIL_NAMES
        for name, (summary, texts) in self.guardrails.items():
            await client.set(revision, summary.version)
            await client.hset(versions, name.text, str(summary.version))
            await client.hset(summaries, name.text, summary.SerializeToString())
            await client.hset(rules, name.text, texts.SerializeToString())


async def names_of_earlier(client: redis.asyncio.Redis) -> set[str]:
    """Those of the layout that are there."""
    patterns = ("*{keys}*", "*rules", "*{guardrails}*")
    found = [name for pattern in patterns for name in cast("list[bytes]", await client.keys(pattern))]
    return {name.decode() for name in found} - {f"{KEYS}:last_used"}


def flat(fields: Mapping[str, str]) -> list[str]:
    return [text for pair in fields.items() for text in pair]
