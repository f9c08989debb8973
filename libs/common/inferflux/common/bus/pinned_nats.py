"""nats-py's client, with its traps closed, a cheaper way in, and a way out that never waits.

A subscription here is a tap: a plain function called from the read loop, without a queue, a task or a
message object per message. That saves a fifth of what relaying a token costs before gRPC
(docs/decisions/nats-client.md). Sending is a plain function too: it appends to the outbound buffer, which the
client's flusher writes on the next turn of the loop.

What is changed in nats-py 2.16, and why:

- `flush` sent its PING ahead of the commands still in the buffer, so its PONG proved nothing about them.
- A PONG for a flush that had timed out raised in the read loop, which ended it: a connection that looked
  alive and was deaf. The same for a subject or header that does not decode. The read loop's end now
  always means a reconnect.
- An error line of the server's ("slow consumer", "maximum connections exceeded") closed the client for
  good; now it reconnects.
- A server at a URL of `tls://` that did not offer TLS was talked to in plain text.
- Leaving a half-open connection waited for its unsent bytes to be written first; now it is aborted.
- A server that took the connection and said nothing left it open for ever.
- Servers of a cluster that another one tells of were asked without user and password, and those that were
  known already a second time.
- All clients of a server that is gone came to the others in the same instant.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import nats.aio.client
import nats.errors

from inferflux.common.process.tls import ClientTls, TlsFiles

from .client import OUTBOUND_LIMIT_BYTES, OnMessage, OutboundFullError, TooLargeError

_RECONNECT_WAIT_S = 0.25
# Clients that lost a server of several look for the next one within this time, each at a moment of its own.
_SPREAD_S = 0.2
_CONNECT_TIMEOUT_S = 2
# A cut network is noticed after 4 to 6 s even if no packet tells of it.
_PING_INTERVAL_S = 2
# After 1 to 1.5 s where another server can take over.
_CLUSTER_PING_INTERVAL_S = 0.5
_PINGS_OUTSTANDING = 2

_PING = b"PING\r\n"
_SPREAD = random.SystemRandom()
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NEWLINES = str.maketrans({"\r": " ", "\n": " "})


class Tap:
    """A subscription that hands every message to a function. The underscored names are nats-py's."""

    __slots__ = (
        "_max_msgs",
        "_message_iterator",
        "_pending_next_msgs_calls",
        "_queue",
        "_received",
        "_subject",
        "_wait_for_msgs_task",
        "on_message",
    )

    def __init__(self, subject: str, queue: str, on_message: OnMessage) -> None:
        self.on_message = on_message
        self._subject = subject
        self._queue = queue
        self._max_msgs = 0
        self._received = 0
        self._wait_for_msgs_task = None
        self._message_iterator = None
        self._pending_next_msgs_calls = None


class NatsClient(nats.aio.client.Client):  # type: ignore[misc]
    """One connection that is made again for ever."""

    def __init__(self, tls: TlsFiles) -> None:
        super().__init__()
        self._tls_files = tls
        self._tls: ClientTls | None = None

    def read_certificates(self) -> ClientTls:
        """Read them before they are needed, or again where they were renewed.

        Raises:
            InvalidArgument: a file cannot be used.
        """
        self._tls = self._tls or ClientTls(self._tls_files)
        return self._tls

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """nats-py asks for it at every connection that is encrypted."""
        return self.read_certificates().context()

    async def open(
        self,
        servers: list[str],
        *,
        name: str,
        on_error: Callable[[Exception], None],
        on_disconnect: Callable[[], None],
        on_reconnect: Callable[[], None],
    ) -> None:
        """Connect; tries for ever, so bound it with a timeout. The callbacks must not raise."""

        async def error_cb(error: Exception) -> None:
            on_error(error)

        async def disconnected_cb() -> None:
            on_disconnect()
            if len(self._server_pool) > 1 and not self.is_closed:
                self._shuffle_servers()
                await asyncio.sleep(_SPREAD.uniform(0, _SPREAD_S))

        async def reconnected_cb() -> None:
            on_reconnect()

        await self.connect(
            _SPREAD.sample(servers, len(servers)),
            name=name,
            dont_randomize=True,
            error_cb=error_cb,
            disconnected_cb=disconnected_cb,
            reconnected_cb=reconnected_cb,
            max_reconnect_attempts=-1,
            reconnect_time_wait=_RECONNECT_WAIT_S,
            connect_timeout=_CONNECT_TIMEOUT_S,
            ping_interval=_PING_INTERVAL_S,
            max_outstanding_pings=_PINGS_OUTSTANDING,
            # Our own limit is checked before every append, so nats-py's never forces a flush.
            pending_size=0,
        )

    def _shuffle_servers(self) -> None:
        """The one that was lost comes last: it may take a connection and say nothing."""
        lost = self._current_server
        _SPREAD.shuffle(self._server_pool)
        self._server_pool.sort(key=lambda server: server is lost)

    @property
    def is_clustered(self) -> bool:
        return bool(self._server_info.get("cluster"))

    def send(
        self, subject: str, payload: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        if self._pending_data_size > OUTBOUND_LIMIT_BYTES:
            raise OutboundFullError
        if len(payload) > self._max_payload:
            raise TooLargeError
        check_subject(subject)
        if headers:
            block = encode_headers(headers)
            line = f"HPUB {subject} {reply} {len(block)} {len(block) + len(payload)}\r\n"
            command = line.encode() + block + payload + b"\r\n"
        else:
            command = f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n"
        self._append(command)

    def tap(self, subject: str, on_message: OnMessage, queue: str = "") -> int:
        self._sid += 1
        sid: int = self._sid
        self._subs[sid] = Tap(subject, queue, on_message)
        if self.is_connected:  # else the reconnect subscribes
            self._append(f"SUB {subject} {queue} {sid}\r\n".encode())
        return sid

    def untap(self, sid: int) -> None:
        if self._subs.pop(sid, None) is not None and self.is_connected:
            self._append(f"UNSUB {sid}\r\n".encode())

    def when_written(self, done: asyncio.Future[bool]) -> asyncio.Future[bool]:
        self._flush_queue.put_nowait(done)
        return done

    def discard_outbound(self) -> None:
        self._pending: list[bytes] = []
        self._pending_data_size = 0
        self._abort()

    def discard_unsent(self, prefix: str) -> None:
        start = f"PUB {prefix}".encode()
        kept: list[bytes] = [command for command in self._pending if not command.startswith(start)]
        self._pending = kept
        self._pending_data_size = sum(map(len, self._pending))

    def _append(self, command: bytes) -> None:
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue.empty() and self.is_connected:
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    def _abort(self) -> None:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def _connect_to_server(self, s: Any) -> None:
        self._abort()
        await super()._connect_to_server(s)

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        self._append(_PING)

    async def _process_pong(self) -> None:
        if self._pongs:
            future = self._pongs.pop(0)
            if not future.done():
                future.set_result(True)
            self._pongs_received += 1
            self._pings_outstanding = 0

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        tap = self._subs.get(sid)
        if tap is not None:
            tap.on_message(subject, reply, data, headers)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        wants_tls = self._current_server.uri.scheme == "tls"
        if initial_connection and wants_tls and not info.get("tls_required"):
            # nats-py would send the password in plain text.
            raise nats.errors.Error("the server does not speak TLS, which its URL asks for")
        told = info.get("connect_urls") or []
        known = {(server.uri.hostname, server.uri.port) for server in self._server_pool}
        urls = [url for url in told if not _is_among(url, known)]
        login, at, _ = self._current_server.uri.netloc.rpartition("@")
        info = {**info, "connect_urls": [login + at + url for url in urls]}
        await super()._process_info(info, initial_connection)
        if info.get("cluster"):
            self._server_info["cluster"] = info["cluster"]
            self.options["ping_interval"] = _CLUSTER_PING_INTERVAL_S

    async def _process_err(self, err_msg: str) -> None:
        error = nats.errors.Error(f"nats: {err_msg}")
        await self._error_cb(error)
        if "permissions violation" not in err_msg:
            await self._process_op_err(error)

    async def _process_op_err(self, e: Exception) -> None:
        if self.is_connected:
            self._abort()
            # Their PONGs would be taken for those of pings sent later.
            self._pending = [command for command in self._pending if command is not _PING]
            self._pending_data_size = sum(map(len, self._pending))
        await super()._process_op_err(e)

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected and asyncio.current_task() is self._reading_task:
            await self._process_op_err(nats.errors.UnexpectedEOF())


def _is_among(url: str, known: set[tuple[str | None, int | None]]) -> bool:
    try:
        parts = urlsplit(f"nats://{url}")
        return (parts.hostname, parts.port) in known
    except ValueError:
        return True  # no address: not to be asked


def check_subject(subject: str) -> None:
    """Raises:
    ValueError: it cannot be written.
    """
    if not _is_one_word(subject):
        raise ValueError(f"not a subject: {subject!r}")


def decode_subject(subject: bytes) -> str | None:
    """A subject that can be published to as it came; None if it cannot."""
    try:
        text = subject.decode()
    except UnicodeDecodeError:
        return None
    return text if _is_one_word(text) else None


def _is_one_word(text: str) -> bool:
    """True if the text is not empty and has no white space."""
    return text.split(maxsplit=1) == [text]


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """The header block of a message.

    Raises:
        ValueError: a name holds other characters than HTTP's.
    """
    lines = ["NATS/1.0\r\n"]
    for name, value in headers.items():
        if _HEADER_NAME.fullmatch(name) is None:
            raise ValueError(f"not a header name: {name!r}")
        lines.append(f"{name}: {value.strip().translate(_NEWLINES)}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode()


def decode_headers(block: bytes | None) -> tuple[int, dict[str, str]]:
    """The inline status (0 without one) and the headers; the status text is under "Description"."""
    if not block:
        return 0, {}
    first, *lines = block.split(b"\r\n")
    _version, _, inline = first.partition(b" ")
    code, _, description = inline.strip().partition(b" ")
    headers: dict[str, str] = {}
    if description:
        headers["Description"] = description.decode("utf-8", "replace")
    for line in lines:
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.strip().decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
    return (int(code) if code.isdigit() else 0), headers
