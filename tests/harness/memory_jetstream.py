"""JetStream in memory: streams, direct reads and pull consumers, as far as the bus uses them."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from inferflux.common.bus import jetstream
from inferflux.common.bus.pinned_nats import encode_headers
from inferflux.common.contract.subjects import matches

_API = "$JS.API."
_ACK = "$JS.ACK."
_CONSUMER_DELETED = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"


class Deliver(Protocol):
    """`MemoryNats.deliver`."""

    def __call__(
        self, to: str, payload: bytes, reply: str = "", headers: bytes | None = None, *, subject: str = ""
    ) -> bool: ...


class _RefusedError(Exception):
    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.error = {"code": code, "err_code": err_code, "description": description}


@dataclass(slots=True)
class _Stored:
    sequence: int
    subject: str
    data: bytes
    headers: Mapping[str, str]
    time_ns: int

    @property
    def block(self) -> bytes:
        headers = {**self.headers, jetstream.SEQUENCE: str(self.sequence)}
        return encode_headers(headers)


@dataclass(slots=True)
class _Stream:
    config: dict[str, Any]
    messages: dict[int, _Stored] = field(default_factory=dict)
    last_sequence: int = 0
    # Message id -> its sequence and when it was stored, monotonic.
    ids: dict[str, tuple[int, float]] = field(default_factory=dict)
    consumers: dict[str, _Consumer] = field(default_factory=dict)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    def takes(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self.config["subjects"])

    def of(self, subject: str) -> list[_Stored]:
        return [stored for stored in self.messages.values() if matches(subject, stored.subject)]

    def store(self, subject: str, data: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        """Store a message; what its publisher is answered."""
        now = time.monotonic()
        answer = {"stream": self.config["name"]}
        message_id = headers.get(jetstream.MESSAGE_ID, "")
        sequence, stored_at = self.ids.get(message_id, (0, 0.0))
        if sequence and now - stored_at < jetstream.DUPLICATE_WINDOW_S:
            return {**answer, "seq": sequence, "duplicate": True}
        if (expected := headers.get("Nats-Expected-Last-Subject-Sequence")) is not None:
            last = max((old.sequence for old in self.of(subject)), default=0)
            if last != int(expected):
                raise _RefusedError(400, jetstream.WRONG_LAST_SEQUENCE, f"wrong last sequence: {last}")
        limit = self.config.get("max_msgs", -1)
        if 0 < limit <= len(self.messages):
            raise _RefusedError(503, jetstream.STREAM_STORE_FAILED, "maximum messages exceeded")
        if headers.get("Nats-Rollup") == "sub" or self.config.get("max_msgs_per_subject") == 1:
            for old in self.of(subject):
                del self.messages[old.sequence]
        self.last_sequence += 1
        self.messages[self.last_sequence] = _Stored(
            self.last_sequence, subject, data, dict(headers), time.time_ns()
        )
        if message_id:
            self.ids[message_id] = self.last_sequence, now
        for consumer in self.consumers.values():
            consumer.pump()
        return {**answer, "seq": self.last_sequence}


class _Consumer:
    """A durable pull consumer; the latest pull is the one that is served."""

    def __init__(self, stream: _Stream, config: dict[str, Any], deliver: Deliver) -> None:
        self.config = config
        self._stream = stream
        self._deliver = deliver
        self._pull_to = ""
        self._left = 0
        self._deliveries: dict[int, int] = {}
        # Of what is delivered and not acknowledged: when it comes again.
        self._timers: dict[int, asyncio.TimerHandle] = {}

    @property
    def filters(self) -> list[str]:
        return self.config["filter_subjects"] or [">"]

    def pull(self, to: str, batch: int) -> None:
        self._pull_to, self._left = to, batch
        self.pump()

    def pump(self) -> None:
        """Deliver what is next, as far as the pull and the limit on what is unacknowledged go."""
        for stored in list(self._stream.messages.values()):
            if not self._left or len(self._timers) >= self.config["max_ack_pending"]:
                return
            if stored.sequence in self._timers or not any(matches(f, stored.subject) for f in self.filters):
                continue
            self._left -= 1
            self._hold(stored.sequence, self.config["ack_wait"] / jetstream.NANOSECONDS)
            count = self._deliveries[stored.sequence] = self._deliveries.get(stored.sequence, 0) + 1
            names = f"{self._stream.config['name']}.{self.config['durable_name']}"
            reply = f"{_ACK}{names}.{count}.{stored.sequence}.{stored.sequence}.{stored.time_ns}.0"
            block = encode_headers(stored.headers) if stored.headers else None
            self._deliver(self._pull_to, stored.data, reply, block, subject=stored.subject)

    def acknowledge(self, sequence: int, answer: bytes) -> None:
        if answer in (b"+ACK", b"+TERM"):
            self._release(sequence)
            self._stream.messages.pop(sequence, None)
            self.pump()
        elif answer == b"+WPI":
            self._hold(sequence, self.config["ack_wait"] / jetstream.NANOSECONDS)

    def end(self, status: bytes) -> None:
        """Deliver nothing more, and tell the open pull why."""
        for sequence in list(self._timers):
            self._release(sequence)
        if self._left:
            self._left = 0
            self._deliver(self._pull_to, b"", "", status)

    def lose_pull(self) -> None:
        self._left = 0

    def _hold(self, sequence: int, wait_s: float) -> None:
        self._release(sequence)
        loop = asyncio.get_running_loop()
        self._timers[sequence] = loop.call_later(wait_s, self._come_again, sequence)

    def _come_again(self, sequence: int) -> None:
        self._release(sequence)
        self.pump()

    def _release(self, sequence: int) -> None:
        if (timer := self._timers.pop(sequence, None)) is not None:
            timer.cancel()


class MemoryJetStream:
    """Answers JetStream's API, stores what its streams take, and delivers to consumers."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._streams: dict[str, _Stream] = {}
        self._operations: dict[tuple[str, str], Callable[[list[str], dict[str, Any]], dict[str, Any]]] = {
            ("STREAM", "CREATE"): self._make_stream,
            ("STREAM", "UPDATE"): self._make_stream,
            ("STREAM", "INFO"): self._stream_info,
            ("STREAM", "PURGE"): self._purge,
            ("STREAM", "MSG"): self._stored_message,
            ("STREAM", "DELETE"): self._delete_stream,
            ("CONSUMER", "CREATE"): self._make_consumer,
            ("CONSUMER", "INFO"): self._consumer_info,
            ("CONSUMER", "DELETE"): self._delete_consumer,
        }

    def take(self, subject: str, payload: bytes, reply: str, headers: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Whether a message was for JetStream itself, and is taken care of."""
        if subject.startswith(_ACK):
            _, _, stream, name, _, sequence, *_ = subject.split(".")
            if stream in self._streams and name in (consumers := self._streams[stream].consumers):
                consumers[name].acknowledge(int(sequence), payload)
                if reply:
                    self._deliver(reply, b"")
            return True
        if not subject.startswith(_API):
            return False
        tokens = subject.removeprefix(_API).split(".")
        body = json.loads(payload) if payload else {}
        if tokens[:2] == ["DIRECT", "GET"]:
            return self._read(tokens[2], ".".join(tokens[3:]), body, reply)
        if tokens[:3] == ["CONSUMER", "MSG", "NEXT"]:
            return self._pull(tokens[3], tokens[4], body, reply)
        try:
            answer = self._operations[tokens[0], tokens[1]](tokens[2:], body)
        except _RefusedError as refused:
            answer = {"error": refused.error}
        self._deliver(reply, json.dumps(answer).encode())
        return True

    def store(self, subject: str, payload: bytes, reply: str, headers: Mapping[str, str]) -> bool:
        """Store a message in the stream that takes it; whether there is one."""
        for stream in self._streams.values():
            if not stream.takes(subject):
                continue
            try:
                answer = stream.store(subject, payload, headers)
            except _RefusedError as refused:
                answer = {"error": refused.error}
            if reply and not stream.config.get("no_ack"):
                self._deliver(reply, json.dumps(answer).encode())
            return True
        return False

    def delete_stream(self, name: str) -> None:
        """Delete a stream and say so."""
        for consumer in self._streams.pop(name).consumers.values():
            consumer.end(_CONSUMER_DELETED)
        self._deliver(jetstream.deleted_advisory(name), b"{}")

    def lose_memory(self) -> None:
        """What a killed server loses: streams in memory, and who pulls."""
        for name, stream in list(self._streams.items()):
            if stream.config["storage"] == "memory":
                del self._streams[name]
            for consumer in stream.consumers.values():
                consumer.lose_pull()

    def _stream(self, name: str) -> _Stream:
        if name not in self._streams:
            raise _RefusedError(404, jetstream.STREAM_NOT_FOUND, "stream not found")
        return self._streams[name]

    def _make_stream(self, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        stream = self._streams.setdefault(names[0], _Stream(body))
        stream.config = body
        return {}

    def _stream_info(self, names: list[str], _body: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(names[0])
        now = datetime.fromtimestamp(time.time_ns() / jetstream.NANOSECONDS, UTC)
        return {
            "ts": now.isoformat(),
            "created": stream.created,
            "state": {"messages": len(stream.messages), "last_seq": stream.last_sequence},
        }

    def _purge(self, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(names[0])
        gone = stream.of(body.get("filter", ">"))
        for stored in gone[: len(gone) - body.get("keep", 0)]:
            del stream.messages[stored.sequence]
        return {}

    def _stored_message(self, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        """STREAM.MSG.GET."""
        found = _found(self._stream(names[1]), body)
        if not found:
            raise _RefusedError(404, jetstream.NO_MESSAGE_FOUND, "no message found")
        stored = found[0]
        message = {"seq": stored.sequence, "data": base64.b64encode(stored.data).decode()}
        if stored.headers:
            message["hdrs"] = base64.b64encode(encode_headers(stored.headers)).decode()
        return {"message": message}

    def _delete_stream(self, names: list[str], _body: dict[str, Any]) -> dict[str, Any]:
        self._stream(names[0])
        self.delete_stream(names[0])
        return {}

    def _make_consumer(self, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        stream, config = self._stream(names[0]), body["config"]
        if (same := stream.consumers.get(names[1])) is not None:
            if same.config != config:
                raise _RefusedError(400, jetstream.CONSUMER_EXISTS, "consumer already exists")
            return {"config": same.config}
        made = _Consumer(stream, config, self._deliver)
        for other in stream.consumers.values():
            if any(matches(a, b) or matches(b, a) for a in made.filters for b in other.filters):
                raise _RefusedError(400, jetstream.CONSUMERS_OVERLAP[1], "filters overlap")
        stream.consumers[names[1]] = made
        return {"config": made.config}

    def _consumer_info(self, names: list[str], _body: dict[str, Any]) -> dict[str, Any]:
        return {"config": self._consumer(names).config}

    def _delete_consumer(self, names: list[str], _body: dict[str, Any]) -> dict[str, Any]:
        consumer = self._consumer(names)
        del self._stream(names[0]).consumers[names[1]]
        consumer.end(_CONSUMER_DELETED)
        return {}

    def _consumer(self, names: list[str]) -> _Consumer:
        consumer = self._stream(names[0]).consumers.get(names[1])
        if consumer is None:
            raise _RefusedError(404, jetstream.CONSUMER_NOT_FOUND, "consumer not found")
        return consumer

    def _pull(self, stream: str, name: str, body: dict[str, Any], reply: str) -> bool:
        """Whether there is a consumer that takes the pull."""
        if stream not in self._streams or name not in self._streams[stream].consumers:
            return False
        self._streams[stream].consumers[name].pull(reply, body["batch"])
        return True

    def _read(self, name: str, last_of: str, body: dict[str, Any], reply: str) -> bool:
        """Direct reads: the last of a subject, one by its sequence, the next of a subject, or a batch."""
        if name not in self._streams:
            return False
        found = _found(self._streams[name], {"last_by_subj": last_of} if last_of else body)
        if not found:
            self._deliver(reply, b"", "", b"NATS/1.0 404 Message Not Found\r\n\r\n")
            return True
        batch = found[: body.get("batch", 1)]
        for stored in batch:
            self._deliver(reply, stored.data, "", stored.block)
        if "batch" in body:
            end = f"NATS/1.0 204 EOB\r\nNats-Num-Pending: {len(found) - len(batch)}\r\n\r\n"
            self._deliver(reply, b"", "", end.encode())
        return True


def _found(stream: _Stream, which: Mapping[str, Any]) -> list[_Stored]:
    """The last message of a subject, those of a subject from a sequence on, or the one of a sequence."""
    if "last_by_subj" in which:
        return stream.of(which["last_by_subj"])[-1:]
    if "next_by_subj" in which:
        return [s for s in stream.of(which["next_by_subj"]) if s.sequence >= which["seq"]]
    return [s for s in [stream.messages.get(which["seq"])] if s is not None]
