"""What an administrator may ask for."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.models import admin_limits
from inferflux.v1 import scheduler_pb2

Change = scheduler_pb2.SetFairness


@pytest.mark.parametrize(
    "change",
    [
        Change(enable_preemption=False),
        Change(high_priority_threshold=0),
        Change(high_priority_threshold=-1000),
        Change(high_priority_threshold=1000),
        Change(max_timeslice_tokens=0),
        Change(max_timeslice_tokens=1_000_000),
        Change(reset=True),
    ],
    ids=str,
)
def test_a_change_within_its_ranges_is_taken(change: Change) -> None:
    admin_limits.check_fairness(change)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (Change(), "change"),
        (Change(high_priority_threshold=1001), "change.high_priority_threshold"),
        (Change(high_priority_threshold=-1001, reset=True), "change.high_priority_threshold"),
        (Change(max_timeslice_tokens=1_000_001), "change.max_timeslice_tokens"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_its_field(change: Change, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        admin_limits.check_fairness(change)
    assert caught.value.field == field


@pytest.mark.parametrize("worker_id", ["", "a.b", "*", "a b", "x" * 65, "wörker"])
def test_a_workers_id_must_be_able_to_stand_in_a_subject(worker_id: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        admin_limits.check_worker_id(worker_id)
    assert caught.value.field == "worker_id"


def test_handing_over_is_put_off_for_a_day_at_most() -> None:
    for allowed in (None, 0, 86_400_000):
        admin_limits.check_hand_over(allowed)
    with pytest.raises(InvalidArgument) as caught:
        admin_limits.check_hand_over(86_400_001)
    assert caught.value.field == "hand_over_after_ms"
