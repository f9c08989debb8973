"""Reading JetStream's reply subjects."""

from __future__ import annotations

from inferflux.common.bus.jetstream import parse_delivery


def test_both_forms_of_a_reply_subject_are_read() -> None:
    short = parse_delivery(b"$JS.ACK.INFERFLUX_JOBS.scheduler.2.17.9.1700000000000000000.4")
    long = parse_delivery(b"$JS.ACK._.hash.INFERFLUX_JOBS.scheduler.2.17.9.1700000000000000000.4.random")
    assert short == long
    assert short.key == (17, 1700000000000000000)
