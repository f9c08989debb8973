"""API keys: shape, digest, record, and what is refused by name."""

from __future__ import annotations

import hashlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.callers.api_key import is_well_formed
from inferflux.common.contract.callers.scopes import Scope
from inferflux.common.contract.errors import InvalidArgument
from inferflux.policy.decide import keys
from inferflux.policy.decide.keys import ALL_SCOPES, ApiKeyRecord
from inferflux.policy.decide.roles import access_of

URL_SAFE = string.ascii_letters + string.digits + "-_"


def test_a_generated_key_is_well_formed_and_never_the_same_twice() -> None:
    drawn = {keys.generate() for _ in range(200)}
    assert len(drawn) == 200
    assert all(is_well_formed(secret) and len(secret) == 47 for secret in drawn)


@given(st.text(alphabet=URL_SAFE, min_size=43, max_size=43))
def test_any_43_url_safe_characters_after_the_prefix_are_well_formed(body: str) -> None:
    assert is_well_formed(f"ifx_{body}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ifx_",
        "a" * 47,
        "ifx_" + "a" * 42,
        "ifx_" + "a" * 44,
        "IFX_" + "a" * 43,
        "ifx_" + "a" * 42 + "+",
        "ifx_" + "a" * 43 + "\n",
        " ifx_" + "a" * 43,
        "ifx_" + "ä" * 43,
    ],
)
def test_anything_else_is_not(text: str) -> None:
    assert not is_well_formed(text)


def test_a_key_is_stored_by_its_sha256_and_named_after_it() -> None:
    secret = "ifx_" + "a" * 43
    digest = hashlib.sha256(secret.encode()).hexdigest()
    assert keys.digest_of(secret) == digest
    assert keys.key_id_of(digest) == f"key_{digest[:16]}"
    assert keys.parse_key_id(keys.key_id_of(digest)) == keys.key_id_of(digest)


@given(
    tenant=st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True),
    name=st.text(alphabet=st.characters(categories=["L", "N", "P"]), min_size=1, max_size=128),
    scopes=st.sets(st.sampled_from(ALL_SCOPES), min_size=1),
    created=st.integers(min_value=0, max_value=2**53),
    ceiling=st.none() | st.integers(-100, 100),
    cache_scope=st.sampled_from(["", "tenant", "catalogue"]),
    skips=st.booleans(),
    roles=st.sets(st.sampled_from(["user", "of-ours"])),
    expires=st.none() | st.integers(min_value=0, max_value=2**53),
    models=st.sets(st.sampled_from(["demo", "a model", "pre*", "ä"])),
    pools=st.sets(st.sampled_from(["default", "gold"])),
    deterministic=st.booleans(),
    version=st.integers(1, 99),
    was_rotated=st.booleans(),
)
def test_a_record_survives_being_written_and_read(
    tenant: str,
    name: str,
    scopes: set[Scope],
    created: int,
    ceiling: int | None,
    cache_scope: str,
    skips: bool,
    roles: set[str],
    expires: int | None,
    models: set[str],
    pools: set[str],
    deterministic: bool,
    version: int,
    was_rotated: bool,
) -> None:
    granted = tuple(s for s in Scope if s in scopes)
    record = ApiKeyRecord(
        "0f" * 32,
        tenant,
        name,
        granted,
        created,
        ceiling,
        cache_scope,
        skips,
        roles=tuple(roles),
        expires_unix_ms=expires,
        models=tuple(models),
        version=version,
        worker_pools=tuple(pools),
        is_deterministic=deterministic,
    )
    if was_rotated:
        record = record.rotated("1e" * 32, previous_until_unix_ms=created + 1)
    assert ApiKeyRecord.from_fields(record.digest, record.fields()) == record


def test_a_record_holds_neither_the_key_nor_its_digest() -> None:
    secret = keys.generate()
    digest = keys.digest_of(secret)
    written = " ".join(ApiKeyRecord(digest, "acme", "ci", ALL_SCOPES, 1).fields().values())
    assert secret not in written
    assert digest not in written


def test_a_scope_of_another_version_grants_nothing_and_is_kept() -> None:
    fields = {"tenant": "acme", "name": "x", "scopes": "inference superuser", "created_at": "1"}
    record = ApiKeyRecord.from_fields("0f" * 32, fields)
    assert access_of(record, []).scopes == {Scope.INFERENCE}
    assert record.fields()["scopes"] == "inference superuser"


def test_a_rotated_key_keeps_its_name() -> None:
    record = ApiKeyRecord("0f" * 32, "acme", "ci", (Scope.INFERENCE,), 1)
    once = record.rotated("1e" * 32, previous_until_unix_ms=5)
    twice = once.rotated("2d" * 32, previous_until_unix_ms=0)
    assert record.key_id == once.key_id == twice.key_id
    assert (once.previous_digest, once.version) == ("0f" * 32, 2)
    assert (twice.previous_digest, twice.version) == ("", 3)


def test_a_key_without_a_ceiling_of_its_own_has_the_settings_unless_it_is_an_administrators() -> None:
    fields = {"tenant": "acme", "name": "x", "scopes": "inference", "created_at": "1"}
    of_earlier_version = ApiKeyRecord.from_fields("0f" * 32, fields)
    assert of_earlier_version.priority_ceiling(4, is_admin=False) == 4
    assert of_earlier_version.priority_ceiling(4, is_admin=True) == 100
    granted = ApiKeyRecord.from_fields("0f" * 32, fields | {"max_priority": "-7"})
    assert granted.priority_ceiling(4, is_admin=True) == -7


@pytest.mark.parametrize("priority", [101, -101, 2**31 - 1])
def test_a_ceiling_out_of_range_is_refused_by_name(priority: int) -> None:
    with pytest.raises(InvalidArgument, match=r"^max_priority must be from -100 to 100") as refused:
        keys.parse_max_priority(priority)
    assert refused.value.field == "max_priority"


@pytest.mark.parametrize("text", ["a", "0", "acme", "acme-eu_1", "a" * 63])
def test_a_tenant_may_be(text: str) -> None:
    assert keys.parse_tenant(text) == text


@pytest.mark.parametrize("text", ["", "-a", "_a", "Acme", "a.b", "a b", "a*", "a" * 64, "ä", "a\n", "{a}"])
def test_a_tenant_may_not_be(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        keys.parse_tenant(text)
    assert caught.value.field == "tenant"


@pytest.mark.parametrize("text", ["", "a" * 129, "two\nlines", "nul\0", "\x1b[31m"])
def test_a_name_may_not_be(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        keys.parse_name(text)
    assert caught.value.field == "name"


@pytest.mark.parametrize("text", ["", "key_", "key_" + "g" * 16, "key_" + "0" * 15, "0" * 16, "key_*"])
def test_a_key_id_may_not_be(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        keys.parse_key_id(text)
    assert caught.value.field == "key_id"


def test_scopes_are_kept_once_each_in_a_fixed_order() -> None:
    assert keys.parse_scopes(["admin", "inference", "admin"]) == (Scope.INFERENCE, Scope.ADMIN)


def test_an_unknown_scope_is_named_by_its_place() -> None:
    with pytest.raises(InvalidArgument, match="use one of inference, models, models:load, admin") as caught:
        keys.parse_scopes(["inference", "root"])
    assert caught.value.field == "scopes[1]"


@pytest.mark.parametrize(
    ("own", "default", "shared"),
    [
        ("", "tenant", ""),
        ("", "all", "all"),
        ("tenant", "all", ""),
        ("catalogue", "all", "catalogue"),
        ("catalogue", "tenant", "catalogue"),
    ],
)
def test_a_keys_own_cache_scope_counts_before_the_deployments(own: str, default: str, shared: str) -> None:
    record = ApiKeyRecord("0" * 64, "acme", "ci", (Scope.INFERENCE,), 1, cache_scope=own)
    assert record.shared_scope(default) == shared
