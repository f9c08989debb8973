"""Confirmations of acknowledgements that come when no caller waits for them any more."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from inferflux.common.bus.client import OnMessage
from inferflux.common.bus.jobs import JobConsumer


class Server:
    """As much of a link as a consumer needs; a test says what arrives."""

    is_connected = True
    inbox_prefix = "_INBOX"

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, str]] = []
        self.client = SimpleNamespace(tap=self._tap, untap=lambda _sid: None)
        self.deliver: OnMessage
        self._made: Mapping[str, Any] = {}

    def _tap(self, _subject: str, on_message: OnMessage) -> int:
        self.deliver = on_message
        return 1

    def send(self, subject: str, payload: bytes, reply: str = "") -> None:
        self.sent.append((subject, payload, reply))

    async def api(self, operation: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if operation.startswith("STREAM.INFO"):
            return {"created": "2026-01-01T00:00:00Z", "state": {"last_seq": 0}}
        self._made = body or self._made
        return {"config": self._made.get("config")}


async def consume(server: Server) -> JobConsumer:
    consumer = JobConsumer(
        server,  # type: ignore[arg-type]
        name="scheduler",
        filters=[],
        max_outstanding=8,
        ack_wait_s=60,
    )
    await consumer.start()
    return consumer


async def test_one_that_comes_after_a_reconnect_is_no_job() -> None:
    server = Server()
    consumer = await consume(server)
    server.deliver(b"inbox", b"$JS.ACK.INFERFLUX_JOBS.scheduler.1.1.1.1700000000000000000.0", b"job", None)
    job = await anext(consumer)
    await job.ack()
    [confirmation] = [reply for _, payload, reply in server.sent if payload == b"+ACK"]
    await consumer.recover()
    server.deliver(confirmation.encode(), b"", b"", None)
    await consumer.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"\xff\xfe",
        b"$JS.ACK.s.c.one.1.1.1.0",
        "$JS.ACK.s.c.\u0661.1.1.1.0".encode(),
        b"$JS.ACK.s.c.1.1.1.1%s.0" % (b"0" * 400),
        b"$JS.ACK.s.c.1.-1.1.1.0",
    ],
)
async def test_a_delivery_that_is_none_of_the_work_queue_is_ignored(reply: bytes) -> None:
    server = Server()
    consumer = await consume(server)
    server.deliver(b"inbox", reply, b"forged", None)
    server.deliver(b"inbox", b"$JS.ACK.INFERFLUX_JOBS.scheduler.1.1.1.1700000000000000000.0", b"job", None)
    assert (await anext(consumer)).data == b"job"
    await consumer.close()
