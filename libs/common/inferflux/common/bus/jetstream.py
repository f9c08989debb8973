"""The names of JetStream's streams and buckets, its error numbers, and reading what they hold by subject."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, Unavailable

from .link import ApiError, Link, Reply
from .pinned_nats import decode_headers

NANOSECONDS = 1_000_000_000
DUPLICATE_WINDOW_S = 120

# JetStream's numbers for the errors that mean something to us.
CONSUMER_NOT_FOUND = 10014
CONSUMER_EXISTS = 10148
# On a work queue: two without a filter, two with filters that overlap.
CONSUMERS_OVERLAP = (10099, 10100)
NO_MESSAGE_FOUND = 10037
STREAM_NOT_FOUND = 10059
WRONG_LAST_SEQUENCE = 10071
STREAM_STORE_FAILED = 10077

_DELETED = subjects.ANY_STREAM_DELETED.removesuffix("*")

# Header of a message to store: JetStream drops a second one of the same id.
MESSAGE_ID = "Nats-Msg-Id"
# Header of a message that was read: its place in the stream.
SEQUENCE = "Nats-Sequence"

_END_OF_BATCH = 204
_NO_MESSAGES = 404
_BATCH_MESSAGES = 1024
_BATCH_BYTES = 4 << 20
_BATCH_SILENCE_S = 2.0
# Places and times in nanoseconds are no larger.
_MOST_COUNTED = 2**64 - 1


class Delivery(NamedTuple):
    """Fields of a delivered message, from its reply subject `$JS.ACK...`."""

    sequence: int
    timestamp: int

    @property
    def key(self) -> tuple[int, int]:
        """Tells messages apart even when the stream was made anew and counts from 1 again."""
        return self.sequence, self.timestamp


def parse_delivery(reply: bytes) -> Delivery:
    """Read `$JS.ACK.<stream>.<consumer>.<count>.<sequence>.<consumer sequence>.<time>.<pending>`, or its
    longer form with domain and account in front of the stream.

    Raises:
        ValueError: it is neither.
    """
    reply.decode("ascii")
    tokens = reply.split(b".")
    if len(tokens) < 9:
        raise ValueError("too few tokens")
    start = 4 if len(tokens) == 9 else 6
    numbers = [int(token) for token in tokens[start : start + 5]]
    if not all(0 <= number <= _MOST_COUNTED for number in numbers):
        raise ValueError("a number that no server counts to")
    return Delivery(numbers[1], numbers[3])


def leader_of(info: Mapping[str, Any]) -> str:
    """The server of a cluster that leads a consumer; "" for one without a cluster."""
    return str((info.get("cluster") or {}).get("leader", ""))


def key_value_stream(bucket: str) -> str:
    return f"KV_{bucket}"


def object_stream(bucket: str) -> str:
    return f"OBJ_{bucket}"


def deleted_advisory(stream: str) -> str:
    """Subject of JetStream's advisory that the stream was deleted."""
    return _DELETED + stream


def is_ours(deleted: str) -> bool:
    """True if an advisory of a deleted stream, by its subject, is about one of ours."""
    return deleted.removeprefix(_DELETED) in subjects.STREAMS


async def exists(link: Link, stream: str) -> bool:
    """True if there is a stream of this name.

    Raises:
        Unavailable, DeadlineExceeded: JetStream does not answer.
    """
    try:
        await link.api(f"STREAM.INFO.{stream}")
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            return False
        raise error.to_error() from error
    return True


async def read_subject_one_by_one(link: Link, stream: str, subject: str) -> list[bytes]:
    """As `read_subject`, for users who may not read directly. It takes a round trip for each message."""
    messages: list[bytes] = []
    sequence = 1
    while (reply := await next_message(link, stream, subject, sequence)) is not None:
        messages.append(reply.data)
        sequence = int(reply.headers[SEQUENCE]) + 1
    return messages


async def read_subject(link: Link, stream: str, subject: str) -> list[bytes]:
    """Every message `stream` holds of a subject, oldest first; [] when there are none or no such stream.

    Raises:
        Unavailable, DeadlineExceeded: JetStream does not answer.
    """
    messages: list[bytes] = []
    sequence = 1
    while True:
        try:
            batch = await _read_batch(link, stream, subject, sequence)
        except Unavailable as error:
            if error.reason == "NO_RESPONDERS" and not await exists(link, stream):
                return messages
            raise
        messages += batch.data
        if batch.pending == 0 or not batch.data:
            return messages
        sequence = batch.last_sequence + 1


async def read_last(link: Link, stream: str, subject: str) -> bytes | None:
    """The newest message of a subject, None without one.

    Raises:
        Unavailable, DeadlineExceeded: as `read_subject`.
    """
    reply = await _stored(link, stream, {"last_by_subj": subject})
    return None if reply is None else reply.data


async def last_message(
    link: Link, stream: str, subject: str, *, timeout_s: float = _BATCH_SILENCE_S
) -> Reply | None:
    """As `read_last`, with the headers: `SEQUENCE` among them. It is a direct read."""
    try:
        return await _direct_get(link, stream, f".{subject}", b"", timeout_s)
    except Unavailable as error:
        if error.reason == "NO_RESPONDERS" and not await exists(link, stream):
            return None
        raise


async def next_message(link: Link, stream: str, subject: str, sequence: int) -> Reply | None:
    """The first message of a subject from `sequence` on, None without one.

    Raises:
        Unavailable, DeadlineExceeded: JetStream does not answer.
    """
    return await _stored(link, stream, {"seq": sequence, "next_by_subj": subject})


async def _direct_get(link: Link, stream: str, suffix: str, body: bytes, timeout_s: float) -> Reply | None:
    """One stored message, None without one."""
    reply = await link.request(f"$JS.API.DIRECT.GET.{stream}{suffix}", body, timeout_s=timeout_s)
    if reply.status == _NO_MESSAGES:
        return None
    if reply.status:
        raise Unavailable(f"{stream} refused a read: {reply.status}", reason="JETSTREAM_ERROR")
    return reply


async def read_headers(link: Link, stream: str, sequence: int) -> dict[str, str] | None:
    """The headers of one message, None when it is gone."""
    reply = await _stored(link, stream, {"seq": sequence})
    return None if reply is None else reply.headers


async def _stored(link: Link, stream: str, which: Mapping[str, Any]) -> Reply | None:
    """One stored message, None without one or without the stream.

    The answer to a direct read is the message itself, sent to whichever reply subject the request names, the
    subjects of JetStream's own API among them. So it can be had to do what its reader may not. The answer to
    this one is a document of JetStream's, which is no request.

    Raises:
        Unavailable, DeadlineExceeded: JetStream does not answer.
    """
    try:
        found = (await link.api(f"STREAM.MSG.GET.{stream}", which))["message"]
    except ApiError as error:
        if error.err_code in (NO_MESSAGE_FOUND, STREAM_NOT_FOUND):
            return None
        raise Unavailable(f"{stream} refused a read: {error}", reason="JETSTREAM_ERROR") from None
    _, headers = decode_headers(base64.b64decode(found["hdrs"]) if found.get("hdrs") else None)
    return Reply(0, {**headers, SEQUENCE: str(found["seq"])}, base64.b64decode(found.get("data", "")))


class _Batch:
    """One answer of a batched direct get, as it comes in."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.pending = 0
        self.last_sequence = 0
        self.refusal = ""
        self.has_no_responders = False
        self.progress = asyncio.Event()
        self.is_over = False

    def on_reply(self, reply: Reply) -> None:
        self.progress.set()
        if reply.status == 0:
            self.data.append(reply.data)
            self.last_sequence = int(reply.headers.get(SEQUENCE, 0))
            return
        self.is_over = True
        if reply.status == _END_OF_BATCH:
            self.pending = int(reply.headers.get("Nats-Num-Pending", 0))
        elif reply.status == 503:
            self.has_no_responders = True
        elif reply.status != _NO_MESSAGES:
            self.refusal = f"{reply.status} {reply.headers.get('Description', '')}"


async def _read_batch(link: Link, stream: str, subject: str, sequence: int) -> _Batch:
    if not link.is_connected:
        raise Unavailable("not connected to NATS", reason="NOT_CONNECTED")
    batch = _Batch()
    asked = f"$JS.API.DIRECT.GET.{stream}"
    inbox, close = link.open_inbox(asked, batch.on_reply)
    body = {
        "seq": sequence,
        "next_by_subj": subject,
        "batch": _BATCH_MESSAGES,
        "max_bytes": _BATCH_BYTES,
    }
    try:
        link.send(asked, json.dumps(body).encode(), inbox)
        while not batch.is_over:
            batch.progress.clear()
            async with asyncio.timeout(_BATCH_SILENCE_S):
                await batch.progress.wait()
    except TimeoutError:
        raise DeadlineExceeded(f"{stream} stopped answering", reason="BUS_TIMEOUT") from None
    finally:
        close()
    if batch.has_no_responders:
        raise Unavailable(f"no server answers for {stream}", reason="NO_RESPONDERS")
    if batch.refusal:
        raise Unavailable(f"{stream} refused a read: {batch.refusal}", reason="JETSTREAM_ERROR")
    return batch
