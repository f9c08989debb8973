"""Messages that several services receive: decoded and checked in one place."""

from __future__ import annotations

import pytest

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.heartbeats import parse_status
from inferflux.common.contract.messages.notices import parse_cancel
from inferflux.v1 import scheduler_pb2


def notice(tenant: str = "acme", request_id: str = "r1", attempt_id: str = "") -> bytes:
    message = scheduler_pb2.CancelNotice(tenant=tenant, request_id=request_id, attempt_id=attempt_id)
    return message.SerializeToString()


def test_a_cancel_notice_on_its_subject_is_read() -> None:
    read = parse_cancel(notice(attempt_id="a1"), subjects.cancel("acme", "r1"))
    assert (read.tenant, read.request_id, read.attempt_id) == ("acme", "r1", "a1")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"\xff", ""),
        (notice(tenant="a b"), "tenant"),
        (notice(request_id="x" * 65), "request_id"),
        (notice(attempt_id="a.b"), "attempt_id"),
        (notice(request_id="r2"), "request_id"),
        (notice(tenant="other"), "request_id"),
    ],
)
def test_a_cancel_notice_that_cannot_be_is_refused_by_name(data: bytes, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_cancel(data, subjects.cancel("acme", "r1"))
    assert caught.value.field == field


def beat(worker_id: str = "w1", incarnation: str = "i1") -> bytes:
    ready = scheduler_pb2.WORKER_STATE_READY
    message = scheduler_pb2.WorkerStatus(worker_id=worker_id, incarnation=incarnation, state=ready)
    return message.SerializeToString()


def test_a_heartbeat_on_its_subject_is_read() -> None:
    assert parse_status(beat(), subjects.worker_status("w1")).incarnation == "i1"


@pytest.mark.parametrize(
    ("data", "field"),
    [(b"\xff", ""), (beat(incarnation=""), "incarnation"), (beat(worker_id="w2"), "worker_id")],
)
def test_a_heartbeat_that_cannot_be_is_refused_by_name(data: bytes, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_status(data, subjects.worker_status("w1"))
    assert caught.value.field == field
