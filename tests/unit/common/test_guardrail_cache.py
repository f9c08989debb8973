"""Compiled sets are kept by version, and within bounds."""

from __future__ import annotations

from inferflux.common.text.guardrails.cache import CompiledCache, SetKey
from inferflux.common.text.guardrails.compiled import CompiledRules
from inferflux.common.text.guardrails.rules import Entry, RuleSet


def rules(characters: int = 10) -> CompiledRules:
    return CompiledRules(RuleSet(blocked=(Entry("x" * characters),)))


def test_a_set_is_found_by_its_version() -> None:
    cache = CompiledCache()
    kept = rules()
    cache.put(SetKey("acme", "demo", 1), kept)
    assert cache.get(SetKey("acme", "demo", 1)) is kept
    assert cache.get(SetKey("acme", "demo", 2)) is None
    assert cache.get(SetKey("acme", "", 1)) is None


def test_a_new_version_takes_the_place_of_the_last() -> None:
    cache = CompiledCache()
    cache.put(SetKey("acme", "demo", 1), rules())
    cache.put(SetKey("acme", "", 1), rules())
    cache.put(SetKey("acme", "demo", 2), rules())
    assert set(cache.of_tenant("acme")) == {SetKey("acme", "demo", 2), SetKey("acme", "", 1)}


def test_what_was_not_used_for_longest_goes_when_all_are_too_large() -> None:
    cache = CompiledCache(most_characters=25)
    first, second, third = (SetKey("acme", str(i), 1) for i in range(3))
    cache.put(first, rules())
    cache.put(second, rules())
    cache.get(first)
    cache.put(third, rules())
    assert set(cache.of_tenant("acme")) == {first, third}


def test_one_that_is_too_large_by_itself_stays_until_the_next() -> None:
    cache = CompiledCache(most_characters=25)
    cache.put(SetKey("", "", 1), rules(30))
    assert cache.get(SetKey("", "", 1)) is not None
    cache.put(SetKey("", "x", 1), rules())
    assert cache.get(SetKey("", "", 1)) is None


def test_a_tenant_has_its_own_sets_and_those_of_every_tenant() -> None:
    cache = CompiledCache()
    for tenant in ("", "acme", "other"):
        cache.put(SetKey(tenant, "", 1), rules())
    assert [key.tenant for key in cache.of_tenant("acme")] == ["", "acme"]
