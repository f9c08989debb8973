"""What becomes of frames on their way."""

from __future__ import annotations

import itertools

import pytest
from fleet.cases import case_of
from fleet.faults import Verb, parse, plan
from fleet.layout import NATS, SERVERS
from fleet.wire import Quality, Wire
from hypothesis import given
from hypothesis import strategies as st

PAIR, BACK = (1, 2), (2, 1)
POOR = Quality(delay_s=0.02, jitter_s=0.01, loss=0.01)


def test_a_perfect_wire_passes_all_at_once() -> None:
    wire = Wire(1)
    assert [wire.due(PAIR, 5.0), wire.passed, wire.lost] == [5.0, 1, 0]


def test_a_cut_is_one_way_and_ends_by_its_name() -> None:
    wire = Wire(1)
    wire.cut_off("a", [PAIR])
    wire.cut_off("b", [PAIR])
    assert (wire.due(PAIR, 1.0), wire.due(BACK, 1.0)) == (None, 1.0)
    wire.mend("a")
    assert wire.due(PAIR, 1.0) is None
    wire.mend("b")
    assert (wire.due(PAIR, 1.0), wire.cut) == (1.0, 2)


@given(st.integers(0, 1000))
def test_frames_keep_their_order_and_take_as_long_as_is_said(seed: int) -> None:
    wire = _wire(seed)
    due = [wire.due(PAIR, n * 0.001) for n in range(200)]
    came = [at for at in due if at is not None]
    assert came == sorted(came)
    assert all(at - n * 0.001 >= 0.01 for n, at in enumerate(due) if at is not None)
    again = _wire(seed)
    assert [again.due(PAIR, n * 0.001) for n in range(200)] == due


def _wire(seed: int) -> Wire:
    wire = Wire(seed)
    wire.quality = POOR
    return wire


def test_about_as_many_are_lost_and_overtake_as_is_said() -> None:
    wire = Wire(3)
    wire.quality = Quality(delay_s=0.02, jitter_s=0.01, loss=0.1, reorder=0.1)
    due = [wire.due(PAIR, n * 0.0001) for n in range(5000)]
    assert 350 < due.count(None) < 650
    came = [at for at in due if at is not None]
    assert came != sorted(came)


def test_a_plan_is_the_same_for_its_seed_and_hits_one_of_each_kind_at_a_time() -> None:
    for seed in range(20):
        faults = plan(seed, 120.0)
        assert faults == plan(seed, 120.0)
        assert len(faults) > 5
        assert all(fault.at_s < 110.0 for fault in faults)
        hit = [fault for fault in faults if fault.targets[0] in NATS or fault.verb is Verb.MINORITY]
        assert all(a.at_s + a.lasts_s <= b.at_s for a, b in itertools.pairwise(hit))


@pytest.mark.parametrize("text", ["killed", "killed:nowhere", "hidden:nats-0", "killed:nats-0+no"])
def test_a_fault_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host|Verb"):
        parse(text, 1.0)


def test_new_requests_may_be_refused_only_without_a_majority_or_a_store() -> None:
    def may(text: str) -> bool:
        return case_of(text, seed=1, seconds=10, lasts_s=1, streams=1).may_refuse

    assert [may("killed:primary"), may("cut:nats-0+nats-1")] == [True, True]
    assert not any(may(f"killed:{host}") for host in SERVERS if not host.startswith("redis"))
