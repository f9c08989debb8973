"""Encrypted storages: what they give away, passphrases that are wrong or changed, files that are damaged."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio

from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.policy.decide import keys
from inferflux.policy.decide.guardrails.store import Name, Rules, Summary
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.limits.rules import RateLimit
from inferflux.policy.decide.roles import BUILTIN, Role
from inferflux.policy.storage.file import PATH
from inferflux.policy.storage.sealed import PASSPHRASE, TAKES_CLEAR
from inferflux.policy.storage.settings import SQL_URL

from .storages import OTHER_PASSPHRASE, PASSPHRASE_OF_TESTS, Opened, Place, opened

SECRET_TENANT = "a-tenant-that-stays-a-secret"
ENCRYPTED = ("redis-encrypted", "file", "sqlite-encrypted")


def record_of(secret: str, **fields: Any) -> ApiKeyRecord:
    given: dict[str, Any] = {
        "tenant": SECRET_TENANT,
        "name": "a key",
        "scopes": ("inference",),
        "created_unix_ms": 7,
    }
    return ApiKeyRecord(keys.digest_of(secret), **(given | fields))


async def content_of(place: Place) -> bytes:
    """All that a storage keeps, in bytes."""
    if place.name == "file":
        return Path(place.variables[PATH]).read_bytes()
    if place.name.startswith("sqlite"):
        return Path(place.variables[SQL_URL].removeprefix("sqlite:///")).read_bytes()
    found = b""
    async with redis.asyncio.Redis.from_url(place.redis_url) as client:
        for name in sorted(cast("list[bytes]", await client.keys("*"))):
            found += name + (await client.dump(name) or b"")
    return found


async def fill(each: Opened) -> ApiKeyRecord:
    record = record_of("filled")
    await each.storage.keys.add(record)
    await each.storage.rate_limits.set_rule(RateLimit("tenant:*", {"tokens_per_day": 3}))
    rules = Rules()
    rules.blocked.add(text=SECRET_TENANT)
    await each.storage.guardrails.put(Name("", ""), Summary(changed_by=SECRET_TENANT), rules)
    return record


@pytest.mark.parametrize("place", ENCRYPTED, indirect=True)
async def test_nothing_is_in_clear(place: Place) -> None:
    each = await opened(place)
    await fill(each)
    await each.aclose()
    content = await content_of(place)
    assert content
    assert SECRET_TENANT.encode() not in content
    assert PASSPHRASE_OF_TESTS.encode() not in content


# Settings refuse a file without a passphrase.
@pytest.mark.parametrize(
    ("place", "passphrase"),
    [*((name, OTHER_PASSPHRASE) for name in ENCRYPTED), ("redis-encrypted", ""), ("sqlite-encrypted", "")],
    indirect=["place"],
)
async def test_a_wrong_passphrase_is_an_error_at_the_start_and_changes_nothing(
    place: Place, passphrase: str
) -> None:
    each = await opened(place)
    record = await fill(each)
    await each.aclose()
    before = await content_of(place)
    with pytest.raises(InvalidArgument, match=r"(?i)passphrase") as caught:
        await opened(place.with_passphrase(passphrase))
    assert caught.value.field == PASSPHRASE
    assert OTHER_PASSPHRASE not in caught.value.message
    assert await content_of(place) == before
    again = await opened(place)
    assert await again.storage.keys.find(record.digest) == record
    await again.aclose()


@pytest.mark.parametrize("place", ENCRYPTED, indirect=True)
async def test_a_passphrase_is_changed_with_both_at_hand(place: Place) -> None:
    each = await opened(place)
    record = await fill(each)
    other = await opened(place.with_passphrase(f"{PASSPHRASE_OF_TESTS},{OTHER_PASSPHRASE}"))
    changed = await opened(place.with_passphrase(f"{OTHER_PASSPHRASE},{PASSPHRASE_OF_TESTS}"))
    for process in (changed, other):
        await process.storage.check()
        assert await process.storage.keys.find(record.digest) == record
        assert (await process.storage.guardrails.rules([Name("", "")]))[0] is not None
    with pytest.raises(Unavailable) as caught:
        await each.storage.check()
    assert "another passphrase" in caught.value.in_full
    alone = await opened(place.with_passphrase(OTHER_PASSPHRASE))
    assert await alone.storage.keys.all_keys() == [record]
    with pytest.raises(InvalidArgument):
        await opened(place)
    for process in (each, other, changed, alone):
        await process.aclose()


@pytest.mark.parametrize("place", ["redis-encrypted"], indirect=True)
async def test_what_redis_had_in_clear_is_encrypted_and_removed(place: Place) -> None:
    clear = await opened(Place("redis", place.redis_url))
    record = await fill(clear)
    rotated = record.rotated(keys.digest_of("rotated"), previous_until_unix_ms=1_900_000_000_000 * 2)
    assert await clear.storage.keys.rotate(rotated, old=record)
    role = Role("reader", ("models",))
    assert await clear.storage.keys.put_role(role)
    assert await clear.storage.keys.bootstrap(record_of("first"), mark="m", only_if_empty=False)
    await clear.storage.keys.note_used({record.key_id: 5})
    rules = await clear.storage.guardrails.rules([Name("", "")])
    limits = await clear.storage.rate_limits.rules()

    with pytest.raises(InvalidArgument, match=TAKES_CLEAR):
        await opened(place)
    sealed = await opened(place.taking_clear())
    await sealed.storage.check()
    for digest in (record.digest, rotated.digest):
        assert await sealed.storage.keys.find(digest) == rotated
    assert await sealed.storage.keys.find(record_of("first").digest) == record_of("first")
    assert await sealed.storage.keys.all_roles() == [*BUILTIN.values(), role]
    assert await sealed.storage.keys.is_bootstrapped("m")
    assert await sealed.storage.keys.last_used() == {record.key_id: 5}
    assert await sealed.storage.rate_limits.rules() == limits
    assert await sealed.storage.guardrails.rules([Name("", "")]) == rules
    assert SECRET_TENANT.encode() not in await content_of(place)
    assert {name.split(b":")[1] for name in cast("list[bytes]", await sealed.redis.keys("*"))} == {
        b"{policy}",
        b"{keys}",
    }
    assert await sealed.redis.keys("inferflux:{keys}:*") == [b"inferflux:{keys}:last_used"]

    with pytest.raises(Unavailable) as refused:
        await clear.storage.check()
    assert "encrypted" in refused.value.in_full
    with pytest.raises(InvalidArgument) as caught:
        await opened(Place("redis", place.redis_url))
    assert caught.value.field == PASSPHRASE
    await clear.aclose()
    await sealed.aclose()


@pytest.mark.parametrize("place", ["redis-encrypted"], indirect=True)
async def test_values_that_others_wrote_or_moved_are_refused(place: Place) -> None:
    each = await opened(place)
    record = await fill(each)
    other = record_of("other", tenant="elsewhere")
    await each.storage.keys.add(other)
    rows = "inferflux:{policy}:rows"
    stolen = await each.redis.hget(rows, f"key {other.digest}")
    assert stolen is not None
    for value in (stolen, b'{"tenant": "elsewhere"}', b"", b'{"sealed": "AAAA"}'):
        await each.redis.hset(rows, f"key {record.digest}", value)
        with pytest.raises(InvalidArgument):
            await opened(place)
    await each.aclose()


@pytest.mark.parametrize("place", ["redis-encrypted", "sqlite-encrypted"], indirect=True)
async def test_a_key_that_was_put_in_place_of_what_was_encrypted_opens_nothing(place: Place) -> None:
    each = await opened(place)
    record = await fill(each)
    await each.aclose()
    clear = await opened(await emptied(place))
    await clear.storage.keys.add(record_of("of an attacker", scopes=("admin",)))
    await clear.aclose()
    with pytest.raises(InvalidArgument, match=TAKES_CLEAR):
        await opened(place)
    # Nothing of it was encrypted either, as what policy had written.
    again = await opened(replace(place, variables=without_passphrase(place)))
    assert [key.name for key in await again.storage.keys.all_keys()] == [record.name]
    assert await again.storage.keys.find(record.digest) is None
    await again.aclose()


async def emptied(place: Place) -> Place:
    """The place without a passphrase, and with nothing there: as someone leaves it who may write to it."""
    if place.name.startswith("sqlite"):
        Path(place.variables[SQL_URL].removeprefix("sqlite:///")).unlink()
    else:
        async with redis.asyncio.Redis.from_url(place.redis_url) as client:
            await client.flushdb()
    return replace(place, variables=without_passphrase(place))


def without_passphrase(place: Place) -> dict[str, str]:
    return {name: value for name, value in place.variables.items() if name != PASSPHRASE}


@pytest.mark.parametrize("place", ["redis-encrypted"], indirect=True)
async def test_a_redis_that_lost_its_data_is_begun_anew(place: Place) -> None:
    each = await opened(place)
    record = await fill(each)
    await each.redis.flushdb()
    await each.storage.check()
    assert await each.storage.keys.find(record.digest) is None
    assert not await each.storage.keys.is_bootstrapped("m")
    await each.storage.keys.add(record)
    again = await opened(place)
    assert await again.storage.keys.all_keys() == [record]
    assert SECRET_TENANT.encode() not in await content_of(place)
    await each.aclose()
    await again.aclose()


@pytest.fixture
def path(place: Place) -> Path:
    return Path(place.variables[PATH])


@pytest.mark.parametrize("place", ["file"], indirect=True)
async def test_a_file_that_is_damaged_is_an_error_at_the_start_and_stays(place: Place, path: Path) -> None:
    each = await opened(place)
    await fill(each)
    whole = path.read_bytes()
    first_line = whole.index(b"\n") + 1
    damaged = {
        "nothing": b"",
        "part of the first line": whole[:20],
        "the first line": whole[:first_line],
        "no tag": whole[: first_line + 20],
        "one byte less": whole[:-1],
        "one byte more": whole + b"x",
        "one bit": whole[:-1] + bytes([whole[-1] ^ 1]),
        "another first line": whole.replace(b"policy 1", b"policy 2", 1),
        "another cost": whole.replace(b":16384:", b":99999999:", 1),
        "something else": b"[policy]\nrevision = 3\n",
    }
    for what, content in damaged.items():
        path.write_bytes(content)
        with pytest.raises(InvalidArgument) as caught:
            await opened(place)
        assert caught.value.field == PATH, what
        assert path.read_bytes() == content
    await each.aclose()


@pytest.mark.parametrize("place", ["file"], indirect=True)
async def test_a_file_that_is_damaged_or_gone_meanwhile_is_refused_and_stays(
    place: Place, path: Path
) -> None:
    each = await opened(place)
    record = await fill(each)
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    for call in (each.storage.check, lambda: each.storage.keys.add(record_of("more"))):
        with pytest.raises(Unavailable):
            await call()
    assert path.read_bytes() == whole[:50]
    path.unlink()
    for call in (each.storage.check, lambda: each.storage.keys.add(record_of("more"))):
        with pytest.raises(Unavailable) as caught:
            await call()
        assert "it is gone" in caught.value.in_full
        assert str(path) in caught.value.in_full
        assert str(path) not in caught.value.message
    assert not path.exists()
    path.write_bytes(whole)
    await each.storage.check()
    assert await each.storage.keys.find(record.digest) == record
    await each.aclose()


@pytest.mark.parametrize("place", ["file"], indirect=True)
async def test_a_file_is_for_its_owner_and_what_a_crash_left_does_no_harm(place: Place, path: Path) -> None:
    path.with_name(f"{path.name}.new").write_bytes(b"half of a fi")
    each = await opened(place)
    record = await fill(each)
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(child.name for child in path.parent.iterdir()) == [path.name, f"{path.name}.lock"]
    again = await opened(place)
    assert await again.storage.keys.all_keys() == [record]
    await each.aclose()
    await again.aclose()


@pytest.mark.parametrize("place", ["file"], indirect=True)
async def test_a_file_that_another_holds_is_read_and_not_changed(place: Place, path: Path) -> None:
    each = await opened(place)
    record = await fill(each)
    await each.aclose()
    hasty = await opened(place, timeout_s=0.5)
    with path.with_name(f"{path.name}.lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert await hasty.storage.keys.find(record.digest) == record
        with pytest.raises(Unavailable) as caught:
            await hasty.storage.keys.add(record_of("more"))
        assert caught.value.reason == "STORE_TIMEOUT"
    await hasty.aclose()


@pytest.mark.parametrize("place", ["file"], indirect=True)
async def test_a_folder_that_is_not_there_is_named(place: Place, path: Path) -> None:
    missing = Place("file", place.redis_url, {**place.variables, PATH: str(path.parent / "none" / "file")})
    with pytest.raises(InvalidArgument) as caught:
        await opened(missing)
    assert caught.value.field == PATH
