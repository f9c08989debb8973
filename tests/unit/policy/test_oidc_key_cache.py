"""When an issuer's keys are asked for, and for how long they hold."""

from __future__ import annotations

from harness.oidc_keys import SigningKey

from inferflux.policy.decide.oidc.key_cache import KeyCache, KeyTimes
from inferflux.policy.decide.oidc.key_set import KeySet, parse_key_set

TIMES = KeyTimes(refresh_s=300, stale_s=3600, retry_s=10)
OLD, NEW = SigningKey.ec("old"), SigningKey.ec("new")


def keys_of(*signing: SigningKey) -> KeySet:
    return parse_key_set({"keys": [key.jwk() for key in signing]})


def test_the_first_token_is_the_cause_of_a_question() -> None:
    cache = KeyCache(TIMES)
    assert not cache.has_keys(0)
    assert cache.may_ask(0)


def test_a_known_key_holds_until_the_issuer_was_away_for_too_long() -> None:
    cache = KeyCache(TIMES)
    cache.asked(0)
    cache.got(keys_of(OLD), 0)
    assert cache.find("old", "ES256", 3599) is not None
    assert cache.find("old", "ES256", 3600) is None
    assert not cache.has_keys(3600)


def test_a_key_that_is_not_there_is_asked_for_once_in_a_while() -> None:
    cache = KeyCache(TIMES)
    cache.asked(0)
    cache.got(keys_of(OLD), 0.1)
    assert cache.find("new", "ES256", 1) is None
    assert not cache.may_ask(9.9)
    assert cache.may_ask(10)
    cache.asked(10)
    assert not cache.may_ask(19)


def test_without_keys_the_issuer_is_asked_sooner_but_not_by_each_token() -> None:
    cache = KeyCache(TIMES)
    cache.asked(0)
    assert not cache.may_ask(0.9)
    assert cache.may_ask(1)


def test_a_key_that_the_issuer_took_back_is_gone_with_its_next_answer() -> None:
    cache = KeyCache(TIMES)
    cache.got(keys_of(OLD), 0)
    cache.got(keys_of(NEW), 300)
    assert cache.find("old", "ES256", 300) is None
    assert cache.find("new", "ES256", 300) is not None
    cache.got(keys_of(), 600)
    assert cache.has_keys(600)
    assert cache.find("new", "ES256", 600) is None
