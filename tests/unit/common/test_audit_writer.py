"""The queue before an audit trail: what waits, what is lost, and when calls are refused."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from inferflux.common.calls.audit.calls import write_call
from inferflux.common.calls.audit.chain import AuditKeys, Head
from inferflux.common.calls.audit.entry import TextDigest
from inferflux.common.calls.audit.stream_sink import StreamSink
from inferflux.common.calls.audit.verify import verify
from inferflux.common.calls.audit.writer import REFUSAL, AuditTrail
from inferflux.common.calls.calls import CallContext, CallRecord
from inferflux.common.contract.errors import Internal, PermissionDenied, Unavailable
from inferflux.common.process.metrics import AUDIT_LINES_LOST
from inferflux.common.process.tasks import Background

KEYS = AuditKeys.of("a key of the tests' own")


class DiskSink:
    """A disk that can be full, and slow."""

    def __init__(self) -> None:
        self.head = Head()
        self.opening: Mapping[str, object] = {"chain": "test"}
        self.records: list[Mapping[str, object]] = []
        self.is_full = False
        self.is_closed = False
        self.may_write = threading.Event()
        self.may_write.set()
        self._pending: list[Mapping[str, object]] = []

    def append(self, records: Iterable[Mapping[str, object]]) -> None:
        self.may_write.wait(10)
        self._pending += records
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.records += self._pending
        self._pending = []
        self.head = Head(len(self.records))

    def close(self) -> None:
        self.is_closed = True

    def texts(self) -> list[object]:
        return [record.get("n", record["event"]) for record in self.records]


@asynccontextmanager
async def running(sink: DiskSink | StreamSink, **options: Any) -> AsyncIterator[AuditTrail]:
    trail = AuditTrail(sink, service="gateway", **options)
    task = Background().start(trail.run())
    try:
        yield trail
    finally:
        await trail.close(task, 5.0)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_lines_are_written_in_order_between_a_first_and_a_last_one() -> None:
    sink = DiskSink()
    async with running(sink) as trail:
        for n in range(5000):
            trail.write("call", n=n)
    assert sink.texts() == ["opened", *range(5000), "closed"]
    assert sink.is_closed
    assert {record["service"] for record in sink.records} == {"gateway"}


async def test_a_line_waits_for_nothing_and_more_than_the_limit_are_lost_and_counted() -> None:
    sink = DiskSink()
    sink.may_write.clear()
    before = AUDIT_LINES_LOST._value.get()
    async with running(sink, limit=10) as trail:
        await asyncio.sleep(0)
        for n in range(30):
            trail.write("call", n=n)
        lost = AUDIT_LINES_LOST._value.get() - before
        assert lost >= 18
        sink.may_write.set()
        await until(lambda: "unaudited" in sink.texts())
        trail.write("call", n="later")
    (gap,) = [record for record in sink.records if record["event"] == "unaudited"]
    assert gap["lost_lines"] == lost
    assert sink.texts()[-2:] == ["later", "closed"]


async def test_what_could_not_be_written_is_written_when_the_disk_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inferflux.common.calls.audit.writer._RETRY_S", 0.01)
    sink = DiskSink()
    sink.is_full = True
    async with running(sink) as trail:
        for n in range(3):
            trail.write("call", n=n)
        await until(lambda: trail.problem)
        trail.check()  # it is counted, and not refused
        for n in range(3, 6):
            trail.write("call", n=n)
        sink.is_full = False
        await until(lambda: not trail.problem)
    assert sink.texts() == ["opened", *range(6), "closed"]


async def test_calls_are_refused_while_lines_cannot_be_written_where_that_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inferflux.common.calls.audit.writer._RETRY_S", 0.01)
    sink = DiskSink()
    async with running(sink, refuses=True) as trail:
        trail.check()
        sink.is_full = True
        trail.write("call", n=1)
        await until(lambda: trail.problem)
        for _ in range(7):
            with pytest.raises(Unavailable) as caught:
                trail.check()
            trail.write("call", reason=caught.value.reason)
        assert caught.value.reason == REFUSAL
        sink.is_full = False
        await until(lambda: not trail.problem)
        trail.check()
    (gap,) = [record for record in sink.records if record["event"] == "unaudited"]
    assert (gap["lost_lines"], gap["refused_calls"]) == (0, 7)


async def test_calls_are_refused_before_lines_would_be_lost() -> None:
    sink = DiskSink()
    sink.may_write.clear()
    async with running(sink, refuses=True, limit=20) as trail:
        await asyncio.sleep(0)
        n = 0
        while trail.takes_calls:
            trail.write("call", n=n)
            n += 1
        before = AUDIT_LINES_LOST._value.get()
        for running_call in range(8):  # those that had begun
            trail.write("call", n=n + running_call)
        assert AUDIT_LINES_LOST._value.get() == before
        sink.may_write.set()


async def test_lines_on_a_stream_are_a_chain_of_their_own() -> None:
    reading, writing = os.pipe()
    async with running(StreamSink(writing, KEYS)) as trail:
        trail.write("call", n=1)
    os.close(writing)
    lines = os.read(reading, 1 << 16).splitlines(keepends=True)
    os.close(reading)
    found = verify([("stdout", lines)], [KEYS.chain])
    assert found.problem is None
    assert (found.first, found.n_lines) == (1, 3)


@pytest.mark.parametrize(
    ("error", "decision", "reason", "outcome"),
    [
        (None, "allowed", "", "done"),
        (PermissionDenied("no", reason="MISSING_SCOPE"), "refused", "MISSING_SCOPE", "missing_scope"),
        (Internal("a defect"), "allowed", "INTERNAL", "internal"),
        (ValueError("a defect"), "allowed", "INTERNAL", "internal"),
        (asyncio.CancelledError(), "allowed", "", "left"),
    ],
)
async def test_a_call_has_one_line_that_says_what_was_decided(
    error: BaseException | None, decision: str, reason: str, outcome: str
) -> None:
    sink = DiskSink()
    context = CallContext("r-1", record=CallRecord("acme", "key_1", {"protocol": "http"}))
    async with running(sink) as trail:
        write_call(trail, context, "GetModel", error=error)
        write_call(trail, context, "GetModel", error=error)
    (line,) = [record for record in sink.records if record["event"] == "call"]
    assert (line["decision"], line["reason"], line["outcome"]) == (decision, reason, outcome)
    assert (line["tenant"], line["key_id"], line["request_id"]) == ("acme", "key_1", "r-1")
    assert (line["method"], line["protocol"]) == ("GetModel", "http")


def test_a_text_is_hashed_alike_however_it_is_cut_and_only_with_the_key() -> None:
    whole, pieces, other = TextDigest(KEYS.texts), TextDigest(KEYS.texts), TextDigest(KEYS.chain)
    whole.add("the answer is é")
    other.add("the answer is é")
    for piece in ("the ans", "", "wer is ", "é"):
        pieces.add(piece)
    assert whole.fields("answer") == pieces.fields("answer") != other.fields("answer")
    assert list(whole.fields("answer")) == ["answer_hmac"]
    assert TextDigest(KEYS.texts).fields("answer") == {}


def test_raw_texts_are_kept_up_to_a_limit_where_that_is_set() -> None:
    digest = TextDigest(KEYS.texts, keeps_raw=True)
    for _ in range(70):
        digest.add("x" * 1000)
    fields = digest.fields("prompt")
    assert fields["prompt"] == "x" * 65536
