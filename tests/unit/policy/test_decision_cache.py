"""How long a decision is remembered, and how many are."""

from __future__ import annotations

from harness.decisions import call, reservation
from hypothesis import given
from hypothesis import strategies as st

from inferflux.policy.decide.decisions.cache import MAX_ENTRIES, DecisionCache
from inferflux.policy.decide.decisions.facts import PERMITTED, Decision

REFUSED = Decision(is_permitted=False, reason="no")


@given(st.floats(0.001, 60), st.floats(0, 120))
def test_a_decision_holds_for_its_time_and_no_longer(ttl_s: float, age_s: float) -> None:
    cache = DecisionCache(ttl_s)
    cache.put("facts", REFUSED, 0.0)
    assert cache.get("facts", age_s) == (REFUSED if age_s < ttl_s else None)


def test_using_a_decision_does_not_make_it_younger() -> None:
    cache = DecisionCache(1.0)
    cache.put("facts", PERMITTED, 0.0)
    assert cache.get("facts", 0.9) is PERMITTED
    assert cache.get("facts", 1.1) is None


def test_without_a_time_nothing_is_kept() -> None:
    cache = DecisionCache(0)
    cache.put("facts", PERMITTED, 0.0)
    assert cache.get("facts", 0.0) is None


def test_the_decision_that_was_used_longest_ago_makes_room() -> None:
    cache = DecisionCache(60)
    for i in range(MAX_ENTRIES):
        cache.put(i, PERMITTED, 0.0)
    cache.get(0, 1.0)
    cache.put("one more", PERMITTED, 1.0)
    assert cache.get(0, 1.0) is PERMITTED
    assert cache.get(1, 1.0) is None


def test_facts_that_differ_in_anything_have_other_keys() -> None:
    facts = [
        call(),
        call(tenant="other"),
        call(key_id="key_" + "1" * 16),
        call(scopes=("inference",)),
        call(roles=()),
        call(issuer="https://a"),
        call(subject="a"),
        call(method="InferenceService/Resume"),
        call(scope="models"),
        reservation(),
        reservation(model="large"),
        reservation(priority=3),
        reservation(prompt_tokens=11),
        reservation(max_tokens=21),
        reservation(text=""),
        reservation(text="a"),
        reservation(text="b"),
    ]
    assert len({each.cache_key() for each in facts}) == len(facts)
    assert reservation(text="a").cache_key() == reservation(text="a").cache_key()


def test_a_text_is_not_kept_in_a_key() -> None:
    assert "secret" not in repr(reservation(text="a secret").cache_key())
