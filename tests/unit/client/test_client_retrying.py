"""Which refused calls are made again, where, and after how long."""

from __future__ import annotations

import pytest

from inferflux.client import InferFluxError, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from inferflux.client.retrying import GATEWAY_LOST, Again, Retrying, never_connected, readable, was_lost

NO_SERVER = Unavailable("failed to connect to all addresses; last error: ...", retry_delay_s=None)
DRAINING = Unavailable("shutting down", reason="DRAINING", retry_delay_s=4.0)
FULL = ResourceExhausted("full", retry_delay_s=2.5)


def all_after(retrying: Retrying, *errors: InferFluxError) -> list[Again | None]:
    return [retrying.after(error) for error in errors]


def test_each_gateway_is_asked_before_a_call_waits() -> None:
    assert all_after(Retrying(1, 3), *[DRAINING] * 6) == [
        Again(0.0, moves=True),
        Again(0.0, moves=True),
        Again(4.0, moves=True),
        Again(0.0, moves=True),
        Again(0.0, moves=True),
        None,
    ]


def test_a_wait_that_no_error_names_grows() -> None:
    delays = [again.delay_s for again in all_after(Retrying(3, 1), *[NO_SERVER] * 3) if again]
    assert delays == [0.5, 1.0, 2.0]


def test_a_limit_of_a_minute_is_waited_for() -> None:
    used_up = ResourceExhausted("4 are used", retry_delay_s=61.0)
    assert Retrying(2, 1).after(used_up) == Again(61.0, moves=False)


def test_a_full_queue_is_waited_for_where_it_is() -> None:
    assert all_after(Retrying(1, 2), FULL, FULL) == [Again(2.5, moves=False), None]


@pytest.mark.parametrize(
    "error",
    [
        NotFound("no"),
        InvalidArgument("no"),
        ResourceExhausted("no", retry_delay_s=None),
        ResourceExhausted("the quota of today is used up", retry_delay_s=9636.0),
    ],
)
def test_what_waiting_does_not_help_or_not_soon_is_final(error: InferFluxError) -> None:
    assert Retrying(9, 9).after(error) is None


def test_a_call_that_did_not_arrive_is_told_in_plain_words() -> None:
    assert never_connected(NO_SERVER)
    assert never_connected(Unavailable("connections to all backends failing; last error: ..."))
    assert not never_connected(DRAINING)
    assert readable(NO_SERVER, "a:1").message == "nothing answers at a:1"
    for said, told in (
        ("last error: ipv4:1: Socket closed", "a:1 closes the connection at once: does it speak TLS"),
        (
            "last error: Trying to connect an http1.x server",
            "a:1 speaks HTTP/1 and not gRPC",
        ),
        (
            "last error: Ssl handshake failed: CERTIFICATE_VERIFY_FAILED: unable to get issuer",
            "a:1 shows a certificate of another CA than is trusted",
        ),
    ):
        other = Unavailable(f"failed to connect to all addresses; {said}", retry_delay_s=None)
        assert readable(other, "a:1").message.startswith(told)
    for words in (
        "DNS resolution failed for nowhere:1",
        "errors resolving nowhere:1: [field:hostname lookup error:address lookup failed for nowhere:1]",
    ):
        unknown = Unavailable(words, retry_delay_s=None)
        assert never_connected(unknown)
        assert readable(unknown, "nowhere:1").message == "nowhere:1: no such host"
    assert readable(FULL, "a:1") is FULL


@pytest.mark.parametrize(
    "said",
    [
        *("Stream removed", "Socket closed", "recvmsg:Connection reset by peer"),
        *("keepalive watchdog timeout", "Too many pings"),
    ],
)
def test_a_lost_connection_is_told_in_plain_words(said: str) -> None:
    lost = Unavailable(said, retry_delay_s=None)
    assert was_lost(lost)
    told = readable(lost, "a:1")
    assert told.message.startswith("the connection to a:1 was lost")
    assert told.reason == GATEWAY_LOST


@pytest.mark.parametrize("error", [NO_SERVER, DRAINING, FULL, Unavailable("Socket closed", reason="REFUSED")])
def test_other_errors_are_no_lost_connections(error: InferFluxError) -> None:
    assert not was_lost(error)
