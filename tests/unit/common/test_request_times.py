"""The times of a request by one clock and by another."""

from __future__ import annotations

import math
import time

import pytest

from inferflux.common.contract import request_times
from inferflux.v1 import scheduler_pb2

FARTHEST = 2**63 - 1


@pytest.mark.parametrize("theirs_ms", [0, 5_000, 1_000_000_000, FARTHEST, -(2**63)])
def test_what_is_left_and_what_has_passed_are_the_same_by_any_clock(theirs_ms: int) -> None:
    ours_ms = 1_800_000_000_000
    request = scheduler_pb2.InferenceRequest(
        enqueued_unix_ms=max(theirs_ms - 250, -(2**63)), deadline_unix_ms=min(theirs_ms + 4_000, FARTHEST)
    )
    left_ms = request.deadline_unix_ms - theirs_ms
    passed_ms = theirs_ms - request.enqueued_unix_ms
    request_times.set_clock(request, theirs_ms=theirs_ms, ours_ms=ours_ms)
    assert request.enqueued_unix_ms == ours_ms - passed_ms
    assert request.deadline_unix_ms == (ours_ms + left_ms if request.deadline_unix_ms > 1 else 1)


def test_a_request_without_a_deadline_gets_none() -> None:
    request = scheduler_pb2.InferenceRequest(enqueued_unix_ms=7)
    request_times.set_clock(request, theirs_ms=7, ours_ms=9_000)
    assert (request.enqueued_unix_ms, request.deadline_unix_ms) == (9_000, 0)
    assert request_times.deadline_s(request, now_s=3.0, unix_s=1e9) == math.inf


def test_times_that_cannot_be_stay_in_their_fields() -> None:
    request = scheduler_pb2.InferenceRequest(enqueued_unix_ms=FARTHEST, deadline_unix_ms=FARTHEST)
    request_times.set_clock(request, theirs_ms=-(2**63), ours_ms=FARTHEST)
    assert (request.enqueued_unix_ms, request.deadline_unix_ms) == (FARTHEST, FARTHEST)
    request.deadline_unix_ms = 5
    request_times.set_clock(request, theirs_ms=FARTHEST, ours_ms=1)
    assert request.deadline_unix_ms == 1


def test_a_deadline_by_the_monotonic_clock() -> None:
    request = scheduler_pb2.InferenceRequest(deadline_unix_ms=1_000_004_500)
    assert request_times.deadline_s(request, now_s=20.0, unix_s=1_000_000.0) == pytest.approx(24.5)


def test_a_request_is_stamped_with_what_is_left() -> None:
    request = scheduler_pb2.InferenceRequest()
    request_times.stamp(request, deadline_at=math.inf)
    assert request.enqueued_unix_ms > 0
    assert request.deadline_unix_ms == 0
    request_times.stamp(request, deadline_at=time.monotonic() + 60)
    assert 0 < request.deadline_unix_ms - request.enqueued_unix_ms <= 60_000
    request_times.stamp(request, deadline_at=time.monotonic() - 1e12)
    assert request.deadline_unix_ms == 1
