"""Link of the bus to NATS: sending, requests, and JetStream's API over one connection."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from inferflux.common.contract.errors import (
    DeadlineExceeded,
    InferFluxError,
    Internal,
    InvalidArgument,
    Unavailable,
)

from .client import Client, OutboundFullError, TooLargeError
from .pinned_nats import decode_headers

_API_TIMEOUT_S = 5.0
# A burst larger than the outbound buffer waits this long for the socket before it is refused.
_BURST_WAIT_S = 0.5


# What JetStream says while it cannot write: consumer store, resources, storage, stream create, purge, update
# and stream store. Its own `code` tells them from a wrong configuration only in part.
_STORE_FAILED = frozenset({10012, 10023, 10047, 10049, 10051, 10069, 10077})
_UNAVAILABLE = 503
# What a cluster says while it elects who leads it or a stream, of a stream whose servers are down, of a
# message that it has not agreed on yet, and of a stream that a server that starts has yet to make (10096).
_ELECTING = frozenset({10008, 10009, 10096, 10118, 10158})
# The reasons of errors for these.
STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
ELECTING = "JETSTREAM_ELECTING"
# The status of a reply that cannot come any more: the connection broke.
LOST = 599
# That of a request that NATS did not let this user make.
_REFUSED = 598
# The reason of an error for that.
NATS_FORBIDDEN = "NATS_FORBIDDEN"
# How nats-server names the subject, which nats-py has put into small letters.
_FORBIDDEN_SUBJECT = re.compile(r"permissions violation for publish to \"([^\"]+)\"")


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    data: bytes


class ApiError(Exception):
    """JetStream refused. `code` is like HTTP's, `err_code` says which error it is."""

    def __init__(self, operation: str, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{operation}: {description} ({err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description

    @property
    def is_passing(self) -> bool:
        """True if servers of a cluster have yet to agree: within seconds, if enough of them are there."""
        return self.err_code in _ELECTING

    @property
    def is_store_failure(self) -> bool:
        """True if JetStream could not write, which ends when its disk or its quorum is back."""
        return not self.is_passing and (self.code == _UNAVAILABLE or self.err_code in _STORE_FAILED)

    def to_error(self) -> InferFluxError:
        """Unavailable for what passes, Internal for what is wrong with the request."""
        message = f"JetStream refused {self}"
        if self.is_passing:
            return Unavailable(message, reason=ELECTING)
        if self.is_store_failure:
            return Unavailable(message, reason=STORE_UNAVAILABLE)
        return Internal(message, reason="JETSTREAM_ERROR")


class Link:
    """Sends, and matches replies to requests through one wildcard inbox.

    Attributes:
        inbox_prefix: of every subject that replies to this client come in on.
        makes_streams: False once NATS has not let this user make streams.
    """

    def __init__(self, client: Client, *, inbox_prefix: str = "_INBOX") -> None:
        self.client = client
        self.inbox_prefix = inbox_prefix
        self.makes_streams = True
        self._inbox = f"{inbox_prefix}.{secrets.token_hex(11)}."
        self._tokens = itertools.count()
        self._open: dict[bytes, Callable[[Reply], None]] = {}
        # The subjects of the requests that are open.
        self._asked: dict[bytes, str] = {}
        self._is_stalled = False

    def listen(self) -> None:
        """Subscribe the inbox: once, when connected."""
        self.client.tap(f"{self._inbox}*", self._on_reply)

    @property
    def is_connected(self) -> bool:
        return bool(self.client.is_connected)

    @property
    def is_clustered(self) -> bool:
        """True if the server is one of several."""
        return self.client.is_clustered

    def send(
        self, subject: str, payload: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Put a message into the outbound buffer.

        Raises:
            Unavailable: the buffer is full (reason OUTBOUND_FULL) or the bus is closed (BUS_CLOSED).
            InvalidArgument: the message is too large, or its subject or a header cannot be written.
        """
        if self.client.is_closed:
            raise Unavailable("the connection to NATS is closed", reason="BUS_CLOSED")
        try:
            self.client.send(subject, payload, reply, headers)
            self._is_stalled = False
        except OutboundFullError:
            raise Unavailable("NATS takes no more messages at present", reason="OUTBOUND_FULL") from None
        except TooLargeError:
            limit = self.client.max_payload
            message = f"a message of {len(payload)} bytes is over the bus's limit of {limit}"
            raise InvalidArgument(message, field="payload", reason="MESSAGE_TOO_LARGE") from None
        except ValueError as error:
            raise InvalidArgument(str(error), field="subject") from None

    async def send_after_burst(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None, full: Unavailable
    ) -> None:
        """Send what `send` refused with `full`, once the socket has taken the burst that filled the buffer.

        Raises:
            Unavailable: it does not take it; until it does, this is known at once.
        """
        if full.reason != "OUTBOUND_FULL" or not self.is_connected or self._is_stalled:
            raise full
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_BURST_WAIT_S):
                await self.client.when_written(written)
        except TimeoutError:
            self._is_stalled = True
            raise full from None
        self.send(subject, payload, "", headers)

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request, one reply.

        Raises:
            Unavailable: certainly not delivered: NOT_CONNECTED, or NO_RESPONDERS without a subscriber.
            DeadlineExceeded: no reply in time (BUS_TIMEOUT) or the connection broke (CONNECTION_LOST);
                it may have been acted on.
            Internal: NATS does not let this user publish there (NATS_FORBIDDEN).
        """
        if not self.is_connected:
            raise Unavailable("not connected to NATS", reason="NOT_CONNECTED")
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def on_reply(reply: Reply) -> None:
            if not answered.done():
                answered.set_result(reply)

        inbox, close = self.open_inbox(subject, on_reply)
        try:
            self.send(subject, payload, inbox, headers)
            async with asyncio.timeout(timeout_s):
                reply = await answered
        except TimeoutError:
            message = f"no answer on {subject} in {timeout_s:g} s"
            raise DeadlineExceeded(message, reason="BUS_TIMEOUT") from None
        finally:
            close()
        return _checked(reply, subject)

    async def request_many(
        self, subject: str, payload: bytes, *, timeout_s: float, is_last: Callable[[Reply], bool]
    ) -> list[Reply]:
        """One request, the replies of all: until `is_last` says so of one, or `timeout_s` is over.

        Raises: as `request`, where there is no reply.
        """
        if not self.is_connected:
            raise Unavailable("not connected to NATS", reason="NOT_CONNECTED")
        replies: list[Reply] = []
        done = asyncio.Event()

        def on_reply(reply: Reply) -> None:
            replies.append(reply)
            if reply.status or is_last(reply):
                done.set()

        inbox, close = self.open_inbox(subject, on_reply)
        try:
            self.send(subject, payload, inbox)
            async with asyncio.timeout(timeout_s):
                await done.wait()
        except TimeoutError:
            if not replies:
                message = f"no answer on {subject} in {timeout_s:g} s"
                raise DeadlineExceeded(message, reason="BUS_TIMEOUT") from None
        finally:
            close()
        return [_checked(reply, subject) for reply in replies]

    def open_inbox(self, subject: str, on_reply: Callable[[Reply], None]) -> tuple[str, Callable[[], None]]:
        """A reply subject for what is asked on `subject`, and the function that closes it."""
        token = b"%x" % next(self._tokens)
        self._open[token] = on_reply
        self._asked[token] = subject

        def close() -> None:
            self._open.pop(token, None)
            self._asked.pop(token, None)

        return self._inbox + token.decode(), close

    async def api(self, operation: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A JetStream API call, e.g. `STREAM.INFO.NAME`.

        Raises:
            ApiError: JetStream refused.
            Unavailable, DeadlineExceeded: as `request`.
        """
        payload = b"" if body is None else json.dumps(body).encode()
        reply = await self.request(f"$JS.API.{operation}", payload, timeout_s=_API_TIMEOUT_S)
        answer: dict[str, Any] = json.loads(reply.data)
        if error := answer.get("error"):
            raise ApiError(
                operation, error.get("code", 500), error.get("err_code", 0), error.get("description", "")
            )
        return answer

    async def flush(self, timeout_s: float) -> None:
        """Return when the server has taken in everything sent before.

        Raises:
            Unavailable: it did not say so in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.client.flush(timeout_s + 1)
        except TimeoutError:
            raise Unavailable(f"NATS did not confirm in {timeout_s:g} s", reason="FLUSH_TIMEOUT") from None

    def lose_replies(self) -> None:
        """The connection broke: tell everyone who waits for a reply."""
        for on_reply in list(self._open.values()):
            on_reply(Reply(LOST, {}, b""))

    def end_refused(self, error: str) -> bool:
        """End the requests that an error of the server's refuses. Returns whether there are any."""
        found = _FORBIDDEN_SUBJECT.search(error)
        refused = [t for t, subject in self._asked.items() if found and subject.lower() == found[1]]
        for token in refused:
            self._open[token](Reply(_REFUSED, {}, b""))
        return bool(refused)

    def _on_reply(self, subject: bytes, _reply: bytes, data: bytes, headers: bytes | None) -> None:
        on_reply = self._open.get(subject[len(self._inbox) :])
        if on_reply is not None:
            status, decoded = decode_headers(headers)
            on_reply(Reply(status, decoded, data))


def _checked(reply: Reply, subject: str) -> Reply:
    """Raises what a reply of the server says, which is none of whom was asked."""
    if reply.status == LOST:
        message = f"the connection to NATS broke while {subject} was asked"
        raise DeadlineExceeded(message, reason="CONNECTION_LOST")
    if reply.status == _REFUSED:
        raise Internal(f"NATS does not let this user publish to {subject}", reason=NATS_FORBIDDEN)
    if reply.status == 503 and not reply.data:
        raise Unavailable(f"no subscriber answers on {subject}", reason="NO_RESPONDERS")
    return reply
