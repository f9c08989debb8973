"""Keys that were admitted before, and how long policy need not be asked about them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferflux.gateway.policy.caller import Caller
from inferflux.gateway.policy.known_keys import KnownKeys

ALICE, BOB = b"alice", b"bob"
CALLER = Caller("acme", "key_1")


def admit(keys: KnownKeys, key: bytes = ALICE, *, scope: str = "inference", at_s: float = 0.0) -> None:
    keys.admitted(key, scope, CALLER, max_priority=4, asked_s=at_s, valid_s=0.25)


def holder(keys: KnownKeys, key: bytes, scope: str, now_s: float) -> Caller | None:
    """Of a call that comes now."""
    return keys.holder(key, scope, came_s=now_s, now_s=now_s)


def test_an_answer_holds_for_its_time_from_when_the_question_was_sent() -> None:
    keys = KnownKeys()
    admit(keys, at_s=10.0)
    assert holder(keys, ALICE, "inference", 10.2) is CALLER
    assert holder(keys, ALICE, "inference", 10.25) is None


def test_a_call_that_came_before_the_question_was_sent_may_have_its_answer_however_late() -> None:
    keys = KnownKeys()
    admit(keys, at_s=10.0)
    assert keys.holder(ALICE, "inference", came_s=9.9, now_s=11.0) is CALLER
    assert keys.holder(ALICE, "inference", came_s=10.1, now_s=11.0) is None


def test_whether_answers_hold_for_others_is_known_after_their_time_too() -> None:
    keys = KnownKeys()
    assert not keys.is_shared(ALICE, "inference")
    admit(keys, at_s=10.0)
    assert keys.is_shared(ALICE, "inference")
    keys.admitted(ALICE, "inference", CALLER, max_priority=4, asked_s=20.0, valid_s=0.0)
    assert not keys.is_shared(ALICE, "inference")


def test_an_answer_is_about_one_key_and_one_scope() -> None:
    keys = KnownKeys()
    admit(keys)
    assert holder(keys, ALICE, "models", 0.1) is None
    assert holder(keys, BOB, "inference", 0.1) is None


def test_an_answer_that_does_not_hold_ends_the_one_before() -> None:
    keys = KnownKeys()
    admit(keys)
    keys.admitted(ALICE, "inference", CALLER, max_priority=4, asked_s=0.1, valid_s=0.0)
    assert holder(keys, ALICE, "inference", 0.1) is None
    assert keys.ceiling(ALICE) == 4


def test_a_call_that_counts_nowhere_changes_no_answer() -> None:
    keys = KnownKeys()
    keys.admitted(ALICE, "inference", CALLER, max_priority=4, asked_s=0.0, valid_s=None)
    assert holder(keys, ALICE, "inference", 0.0) is None
    admit(keys)
    keys.admitted(ALICE, "inference", CALLER, max_priority=3, asked_s=0.1, valid_s=None)
    assert holder(keys, ALICE, "inference", 0.2) is CALLER
    assert keys.ceiling(ALICE) == 3


def test_after_a_change_no_answer_to_an_earlier_question_holds() -> None:
    keys = KnownKeys()
    admit(keys, at_s=1.0)
    keys.changed(1.1)
    assert holder(keys, ALICE, "inference", 1.1) is None
    admit(keys, at_s=1.05)  # it was under way
    assert holder(keys, ALICE, "inference", 1.12) is None
    admit(keys, at_s=1.15)
    assert holder(keys, ALICE, "inference", 1.2) is CALLER
    assert keys.ceiling(ALICE) == 4


def test_a_key_that_policy_does_not_know_any_more_is_forgotten() -> None:
    keys = KnownKeys()
    admit(keys)
    keys.forget(ALICE)
    assert holder(keys, ALICE, "inference", 0.0) is None
    assert keys.ceiling(ALICE) is None


def test_the_key_that_was_admitted_longest_ago_leaves() -> None:
    keys = KnownKeys(most=2)
    for key in (ALICE, BOB, ALICE, b"carol"):
        admit(keys, key)
    assert len(keys) == 2
    assert holder(keys, BOB, "inference", 0.0) is None
    assert holder(keys, ALICE, "inference", 0.0) is CALLER


class World:
    """Policy that reads its keys again each quarter of a second, and a gateway that remembers its answers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.keys = KnownKeys()
        self.is_revoked = self.is_limited = False
        self.revoked_s = self.limited_s = float("inf")
        self._read_s = float("-inf")
        self._is_read_revoked = self._is_read_limited = False
        self.counted = 0

    def call(self, under_way_s: float) -> bool:
        """Whether a call of the key passes; what it passes without is counted."""
        asked_s = self.now
        if holder(self.keys, ALICE, "inference", asked_s) is not None:
            return True
        self.now += under_way_s  # until policy has it
        if self.now - self._read_s >= 0.25:
            self._read_s = self.now
            self._is_read_revoked, self._is_read_limited = self.is_revoked, self.is_limited
        left_s = self._read_s + 0.25 - self.now
        is_admitted, is_limited = not self._is_read_revoked, self._is_read_limited
        self.now += under_way_s  # until the gateway has the answer
        if not is_admitted:
            self.keys.forget(ALICE)
            return False
        self.counted += is_limited
        valid_s = 0.0 if is_limited else left_s
        self.keys.admitted(ALICE, "inference", CALLER, max_priority=4, asked_s=asked_s, valid_s=valid_s)
        return True


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["call", "call", "call", "revoke", "limit", "changed here"]),
            st.floats(0, 0.3),
            st.floats(0, 0.1),
        ),
        max_size=40,
    )
)
def test_a_change_holds_within_a_quarter_of_a_second_and_no_answer_outlives_its_time(
    steps: list[tuple[str, float, float]],
) -> None:
    world = World()
    for what, pause_s, under_way_s in steps:
        world.now += pause_s
        if what == "revoke":
            world.is_revoked, world.revoked_s = True, min(world.revoked_s, world.now)
        elif what == "limit":
            world.is_limited, world.limited_s = True, min(world.limited_s, world.now)
        elif what == "changed here":
            world.keys.changed(world.now)
            assert holder(world.keys, ALICE, "inference", world.now) is None
        else:
            began_s, counted = world.now, world.counted
            passed = world.call(under_way_s)
            assert not (passed and began_s >= world.revoked_s + 0.25)
            if passed and began_s >= world.limited_s + 0.25:
                assert world.counted == counted + 1
