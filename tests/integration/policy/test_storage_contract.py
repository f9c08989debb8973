"""What every storage of policy's configuration holds to."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from harness.policy import until

from inferflux.common.contract.errors import Aborted, NotFound
from inferflux.policy.decide import keys
from inferflux.policy.decide.guardrails.store import Name, Rules, Summary
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.limits.rules import RateLimit
from inferflux.policy.decide.roles import BUILTIN, Role
from inferflux.policy.operator.key_admin import page_of

from .storages import Opened, Place, opened

ODD = ' ]=#; "ü\u2028\\ '


def record_of(secret: str, **fields: Any) -> ApiKeyRecord:
    given = {"tenant": "acme", "name": "a key", "scopes": ("inference",), "created_unix_ms": 7, **fields}
    return ApiKeyRecord(keys.digest_of(secret), **given)


@pytest.fixture
async def two(place: Place) -> AsyncIterator[tuple[Opened, Opened]]:
    """The same storage, as two policy processes have it."""
    first = await opened(place)
    second = await opened(place)
    yield first, second
    await first.aclose()
    await second.aclose()


async def finds(store: Any, digest: str, expected: ApiKeyRecord | None) -> None:
    """Return once a process finds what another one has written."""

    async def is_there() -> bool:
        return bool(await store.find(digest) == expected)

    await until(is_there)


async def test_a_key_is_kept_as_it_is(two: tuple[Opened, Opened]) -> None:
    first, second = (each.storage.keys for each in two)
    plain = record_of("plain")
    full = record_of(
        "full",
        name=ODD,
        scopes=("inference", "of-a-later-version"),
        max_priority=-3,
        cache_scope="shared",
        skips_answer_cache=True,
        roles=("user", "support"),
        expires_unix_ms=1_900_000_000_000,
        models=("demo*", ODD),
        worker_pools=("gold",),
        is_deterministic=True,
        version=3,
    )
    await first.add(plain)
    await first.add(full)
    for store in (first, second):
        await finds(store, full.digest, full)
        assert await store.find(plain.digest) == plain
        assert await store.find_by_id(full.key_id) == full
        assert await store.find(keys.digest_of("unknown")) is None
        assert await store.find_by_id("key_0123456789abcdef") is None


async def test_keys_are_listed_by_age_in_pages_and_of_a_tenant(two: tuple[Opened, Opened]) -> None:
    first, second = (each.storage.keys for each in two)
    made = [record_of(f"k{i}", created_unix_ms=100 - i, tenant=f"t{i % 2}") for i in range(9)]
    for record in made:
        await first.add(record)
    await finds(second, made[-1].digest, made[-1])
    assert await second.all_keys() == made[::-1]
    assert await second.all_keys(tenant="t1") == made[1::2][::-1]
    listed: list[ApiKeyRecord] = []
    token = ""
    while len(listed) < len(made):
        page, token = page_of(await second.all_keys(), token, 4)
        listed += page
    assert (listed, token) == (made[::-1], "")


async def test_a_change_needs_the_version_before(two: tuple[Opened, Opened]) -> None:
    first, second = (each.storage.keys for each in two)
    record = record_of("changed")
    await first.add(record)
    await finds(second, record.digest, record)
    changed = replace(record, name="new", version=2)
    assert await second.replace(changed)
    assert not await first.replace(replace(record, name="stale", version=2))
    assert not await first.replace(replace(record, version=4))
    await finds(first, record.digest, changed)
    assert not await first.replace(replace(record_of("unknown"), version=2))


async def test_of_many_who_remove_one_version_one_succeeds(two: tuple[Opened, Opened]) -> None:
    record = record_of("contested")
    role = Role("reader", ("models",))
    await two[0].storage.keys.add(record)
    assert await two[0].storage.keys.put_role(role)
    assert await two[0].storage.rate_limits.set_rule(RateLimit("tenant:*", {"tokens_per_day": 1}))
    six = [two[i % 2].storage for i in range(6)]
    for removals in (
        [each.keys.revoke(record.key_id, version=1) for each in six],
        [each.keys.delete_role("reader", version=1) for each in six],
        [each.rate_limits.delete_rule("tenant:*", version=1) for each in six],
    ):
        assert sorted(await asyncio.gather(*removals)) == [False] * 5 + [True]


async def test_of_many_who_change_one_version_one_succeeds(two: tuple[Opened, Opened]) -> None:
    stores = [each.storage.keys for each in two]
    record = record_of("contested")
    await stores[0].add(record)
    changes = [stores[i % 2].replace(replace(record, name=f"n{i}", version=2)) for i in range(10)]
    assert sorted(await asyncio.gather(*changes)) == [False] * 9 + [True]


async def test_two_writers_lose_nothing_of_each_other(two: tuple[Opened, Opened]) -> None:
    made = [record_of(f"w{i}", created_unix_ms=i) for i in range(20)]

    async def write(each: Opened, records: list[ApiKeyRecord]) -> None:
        for record in records:
            await each.storage.keys.add(record)
            assert await each.storage.rate_limits.set_rule(RateLimit("tenant:acme", {"tokens_per_day": 1}))

    await asyncio.gather(write(two[0], made[::2]), write(two[1], made[1::2]))

    async def has_all(
        each: Opened,
    ) -> bool:  # what the other wrote last may be unseen for a quarter of a second
        versions = [rule.version for rule in await each.storage.rate_limits.rules()]
        return versions == [len(made)] and await each.storage.keys.all_keys() == made

    for each in two:
        await until(functools.partial(has_all, each))


async def test_a_revoked_key_is_gone_for_every_process(two: tuple[Opened, Opened]) -> None:
    first, second = (each.storage.keys for each in two)
    record = record_of("revoked")
    await first.add(record)
    await finds(second, record.digest, record)
    await first.note_used({record.key_id: 12})
    assert await second.last_used() == {record.key_id: 12}
    assert not await first.revoke(record.key_id, version=2)
    assert await first.find(record.digest) == record
    assert await second.last_used() == {record.key_id: 12}
    assert await first.revoke(record.key_id, version=1)
    assert await first.find(record.digest) is None
    await finds(second, record.digest, None)
    assert not await second.revoke(record.key_id, version=1)
    assert await second.last_used() == {}


async def test_a_rotated_key_has_two_secrets_for_a_while(two: tuple[Opened, Opened]) -> None:
    first, second = (each.storage.keys for each in two)
    record = record_of("before")
    await first.add(record)
    later = int(time.time() * 1000) + 3_600_000
    rotated = record.rotated(keys.digest_of("after"), previous_until_unix_ms=later)
    assert await first.rotate(rotated, old=record)
    assert not await first.rotate(rotated, old=record)
    for digest in (record.digest, rotated.digest):
        await finds(second, digest, rotated)
    assert await second.find_by_id(record.key_id) == rotated
    again = rotated.rotated(keys.digest_of("at last"), previous_until_unix_ms=later)
    assert await second.rotate(again, old=rotated)
    await finds(first, record.digest, None)
    for digest in (rotated.digest, again.digest):
        await finds(first, digest, again)
    assert not await second.revoke(record.key_id, version=rotated.version)
    assert await first.revoke(record.key_id, version=again.version)
    for digest in (rotated.digest, again.digest):
        await finds(second, digest, None)


async def test_the_secret_before_ends_with_its_time(two: tuple[Opened, Opened]) -> None:
    first, second = (each.storage.keys for each in two)
    record = record_of("short")
    await first.add(record)
    soon = int(time.time() * 1000) + 300
    rotated = record.rotated(keys.digest_of("long"), previous_until_unix_ms=soon)
    assert await first.rotate(rotated, old=record)
    await finds(second, rotated.digest, rotated)
    await finds(second, record.digest, None)
    none = rotated.rotated(keys.digest_of("longer"), previous_until_unix_ms=0)
    assert await first.rotate(none, old=rotated)
    assert await first.find(rotated.digest) is None


async def test_roles_are_made_changed_and_deleted(two: tuple[Opened, Opened]) -> None:
    first, second = (each.storage.keys for each in two)
    role = Role("reader", ("models",), ("demo*", ODD), ODD)
    assert await first.put_role(role)
    assert not await first.put_role(role)

    async def sees(*expected: Role) -> bool:
        return await second.find_roles(["reader", "user", "none"]) == [*expected, BUILTIN["user"]]

    await until(lambda: sees(role))
    changed = replace(role, scopes=("inference",), version=2)
    assert await second.put_role(changed)
    assert not await first.put_role(replace(role, version=2))
    assert await second.all_roles() == [*BUILTIN.values(), changed]
    assert not await first.delete_role("reader", version=1)
    assert await second.delete_role("reader", version=2)
    assert not await second.delete_role("reader", version=2)
    await until(sees)


async def test_limits_are_set_changed_and_deleted(two: tuple[Opened, Opened]) -> None:
    first, second = (each.storage.rate_limits for each in two)
    subject = f"model:{ODD}"
    rule = await first.set_rule(RateLimit(subject, {"tokens_per_day": 10**12, "concurrent_requests": 1}))
    assert rule is not None
    assert rule.version == 1

    async def sees(*expected: RateLimit) -> bool:
        return await second.find_rules([subject, "tenant:*"]) == list(expected)

    await until(lambda: sees(rule))
    assert await second.limits_models()
    assert await second.set_rule(replace(rule, version=7)) is None
    changed = await second.set_rule(replace(rule, limits={}, version=1))
    assert changed == RateLimit(subject, {}, 2)
    assert await second.rules() == [changed]
    assert not await first.delete_rule(subject, version=1)
    assert await second.rules() == [changed]
    assert await second.delete_rule(subject, version=2)
    assert not await second.delete_rule(subject)
    assert await second.set_rule(RateLimit("tenant:*", {"tokens_per_day": 1}))
    assert not await second.limits_models()
    assert await second.delete_rule("tenant:*")
    await until(sees)


async def test_guardrails_are_set_changed_and_deleted(two: tuple[Opened, Opened]) -> None:
    first, second = (each.storage.guardrails for each in two)
    name = Name("acme", ODD)
    rules = Rules(patterns=["a.b", ODD], max_characters=7)
    rules.blocked.add(text=ODD, is_word=True)
    summary = Summary(tenant="acme", model=ODD, n_blocked=1, n_patterns=2, max_characters=7)
    before, version = await first.put(name, summary, rules)
    assert before == 0

    async def index_has(*names: Name) -> bool:
        return list((await second.index()).sets) == list(names)

    await until(lambda: index_has(name))
    index = await second.index()
    assert index.sets[name].version == version
    assert index.sets[name].n_patterns == 2
    assert await second.index() is index
    assert await second.rules([name, Name("", "")]) == [rules, None]
    summary.version = version - 1
    with pytest.raises(Aborted):
        await second.put(name, summary, rules)
    summary.version = version
    before, newer = await second.put(name, summary, Rules(max_tokens=9))
    assert before == version
    assert newer > version
    assert await first.rules([name]) == [Rules(max_tokens=9)]
    with pytest.raises(Aborted):
        await second.delete(name, version=version)
    assert await second.delete(name, version=newer) == newer
    with pytest.raises(NotFound):
        await second.delete(name, version=0)
    assert await second.rules([name]) == [None]
    assert not (await second.index()).sets


async def test_the_first_key_is_written_once(two: tuple[Opened, Opened]) -> None:
    first, second = (each.storage.keys for each in two)
    record = record_of("bootstrap")
    written = await asyncio.gather(
        *(store.bootstrap(record, mark="m", only_if_empty=True) for store in (first, second))
    )
    assert sorted(written) == [False, True]
    assert await first.revoke(record.key_id, version=1)
    assert await first.is_bootstrapped("m")
    assert not await first.bootstrap(record, mark="m", only_if_empty=True)
    await first.add(record_of("another"))
    assert not await second.bootstrap(record, mark="n", only_if_empty=True)
    assert await second.bootstrap(record, mark="o", only_if_empty=False)


async def test_what_was_written_is_there_after_a_restart(place: Place) -> None:
    first = await opened(place)
    record = record_of("restart")
    await first.storage.keys.add(record)
    await first.storage.keys.add(record_of("gone"))
    await first.storage.keys.revoke(record_of("gone").key_id, version=1)
    rule = await first.storage.rate_limits.set_rule(RateLimit("tenant:*", {"tokens_per_day": 3}))
    version = (await first.storage.guardrails.put(Name("", ""), Summary(), Rules(max_tokens=4))).now
    await first.aclose()
    second = await opened(place)
    await second.storage.check()
    assert await second.storage.keys.all_keys() == [record]
    assert await second.storage.rate_limits.rules() == [rule]
    assert (await second.storage.guardrails.index()).sets[Name("", "")].version == version
    assert await second.storage.guardrails.rules([Name("", "")]) == [Rules(max_tokens=4)]
    await second.aclose()
