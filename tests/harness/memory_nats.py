"""NATS with JetStream inside one process: what services do over the bus is tested without a server.

`MemoryNats.connect` gives a `Bus`; only what is behind its client differs. A message is delivered in the
loop's next turn. Messages sent before a loss of the connection and not delivered yet are lost, as on a wire.

Not here: what a stream forgets for its age or its size, an idle consumer's removal, permissions, clusters.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from inferflux.common.bus import Bus
from inferflux.common.bus.client import OUTBOUND_LIMIT_BYTES, OnMessage, OutboundFullError, TooLargeError
from inferflux.common.bus.pinned_nats import check_subject, encode_headers
from inferflux.common.contract.subjects import matches

from .memory_jetstream import MemoryJetStream

_MAX_PAYLOAD = 8 << 20
_NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


class _Sent(NamedTuple):
    subject: str
    payload: bytes
    reply: str
    headers: Mapping[str, str] | None


class _Tap(NamedTuple):
    subject: str
    queue: str
    on_message: OnMessage


class MemoryNats:
    """A server in memory. Everything happens on the running loop."""

    def __init__(self) -> None:
        self.is_running = True
        self._clients: list[MemoryClient] = []
        self._jetstream = MemoryJetStream(self.deliver)
        self._turn = itertools.count()

    async def connect(self, name: str = "memory", *, watches_writes: bool = False) -> Bus:  # noqa: ARG002
        """A connection of its own."""
        client = MemoryClient(self)
        bus = Bus(client, watches_writes=watches_writes)
        client.bus = bus
        self._clients.append(client)
        bus.begin()
        return bus

    def stop(self) -> None:
        """Break every connection; what is only in memory is lost, as with a server that is killed."""
        self.is_running = False
        self._jetstream.lose_memory()
        for client in list(self._clients):
            client.lose()

    def start(self) -> None:
        """Take every connection up again."""
        self.is_running = True
        for client in list(self._clients):
            client.regain()

    def cut(self, bus: Bus) -> None:
        """Break one connection."""
        self.client_of(bus).lose()

    def mend(self, bus: Bus) -> None:
        """Take that connection up again."""
        self.client_of(bus).regain()

    def delete_stream(self, name: str) -> None:
        """Delete a stream; every connection is told."""
        self._jetstream.delete_stream(name)

    def forget(self, client: MemoryClient) -> None:
        """A client has closed."""
        self._clients.remove(client)

    def route(self, sent: _Sent) -> None:
        """Take in a message from a client."""
        headers = sent.headers or {}
        if self._jetstream.take(sent.subject, sent.payload, sent.reply, headers):
            return
        block = encode_headers(headers) if headers else None
        is_received = self.deliver(sent.subject, sent.payload, sent.reply, block)
        is_stored = self._jetstream.store(sent.subject, sent.payload, sent.reply, headers)
        if sent.reply and not is_received and not is_stored:
            self.deliver(sent.reply, b"", "", _NO_RESPONDERS)

    def deliver(
        self, to: str, payload: bytes, reply: str = "", headers: bytes | None = None, *, subject: str = ""
    ) -> bool:
        """Hand a message to the subscribers of `to`; whether there are any.

        Args:
            subject: what they see as its subject; "": `to`.
        """
        alone: list[_Tap] = []
        groups: defaultdict[str, list[_Tap]] = defaultdict(list)
        for client in self._clients:
            for tap in client.taps.values() if client.is_connected else ():
                if matches(tap.subject, to):
                    (groups[tap.queue] if tap.queue else alone).append(tap)
        chosen = alone + [members[next(self._turn) % len(members)] for members in groups.values()]
        for tap in chosen:
            tap.on_message((subject or to).encode(), reply.encode(), payload, headers)
        return bool(chosen)

    def client_of(self, bus: Bus) -> MemoryClient:
        """The connection of a bus."""
        return next(client for client in self._clients if client.bus is bus)


class MemoryClient:
    """A connection to a `MemoryNats`; see `inferflux.common.bus.client.Client`."""

    max_payload = _MAX_PAYLOAD
    is_clustered = False

    def __init__(self, server: MemoryNats) -> None:
        self.is_connected = server.is_running
        self.is_closed = False
        self.pending_data_size = 0
        self.taps: dict[int, _Tap] = {}
        self.bus: Bus | None = None
        self._server = server
        self._sids = itertools.count(1)
        self._pending: list[_Sent] = []

    def send(
        self, subject: str, payload: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        if self.pending_data_size > OUTBOUND_LIMIT_BYTES:
            raise OutboundFullError
        if len(payload) > self.max_payload:
            raise TooLargeError
        check_subject(subject)
        encode_headers(headers or {})
        sent = _Sent(subject, payload, reply, headers)
        if self.is_connected:
            asyncio.get_running_loop().call_soon(self._arrive, sent)
        else:
            self._pending.append(sent)
            self.pending_data_size += len(payload)

    def tap(self, subject: str, on_message: OnMessage, queue: str = "") -> int:
        sid = next(self._sids)
        self.taps[sid] = _Tap(subject, queue, on_message)
        return sid

    def untap(self, sid: int) -> None:
        self.taps.pop(sid, None)

    def when_written(self, done: asyncio.Future[bool]) -> asyncio.Future[bool]:
        asyncio.get_running_loop().call_soon(_resolve, done)
        return done

    def discard_outbound(self) -> None:
        self._pending, self.pending_data_size = [], 0

    def discard_unsent(self, prefix: str) -> None:
        self._pending = [s for s in self._pending if s.headers or not s.subject.startswith(prefix)]
        self.pending_data_size = sum(len(sent.payload) for sent in self._pending)

    async def flush(self, timeout: float = 10) -> None:  # noqa: ARG002 - the caller bounds it
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self.is_connected:
            asyncio.get_running_loop().call_soon(_resolve, done)
        await done

    async def close(self) -> None:
        """Deliver nothing more; what was sent arrives."""
        if not self.is_closed:
            self.is_closed, self.is_connected = True, False
            self._server.forget(self)

    def lose(self) -> None:
        """The connection breaks."""
        if self.is_connected and self.bus is not None:
            self.is_connected = False
            self.bus.on_client_disconnect()

    def regain(self) -> None:
        """The connection is made again: first goes what waited."""
        if self.is_connected or self.bus is None:
            return
        self.is_connected = True
        waiting, self._pending, self.pending_data_size = self._pending, [], 0
        for sent in waiting:
            asyncio.get_running_loop().call_soon(self._arrive, sent)
        self.bus.on_client_reconnect()

    def _arrive(self, sent: _Sent) -> None:
        if self.is_connected or self.is_closed:
            self._server.route(sent)


def _resolve(done: asyncio.Future[bool]) -> None:
    if not done.done():
        done.set_result(True)
