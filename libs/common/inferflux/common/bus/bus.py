"""The bus: one connection to NATS that is made again for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

import nats.errors

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError, Unavailable, from_code
from inferflux.common.contract.partitions import WHOLE, Partition
from inferflux.common.contract.requests.images import MAX_OBJECT_BYTES
from inferflux.common.contract.requests.sounds import MAX_SOUND_BYTES
from inferflux.common.contract.requests.stream_limits import StreamLimits
from inferflux.common.process import logs, metrics
from inferflux.common.process.bad_messages import LogThrottle
from inferflux.common.process.tls import TlsFiles

from . import jetstream, queueing, streams
from .addresses import parse_servers, without_password
from .client import Client
from .healing import Healer
from .jobs import JobConsumer
from .key_value import KeyValueBucket
from .link import Link, Reply
from .objects import ObjectBucket
from .pinned_nats import NatsClient
from .serving import ERROR_CODE_HEADER, ERROR_HEADER, ERROR_REASON_HEADER, Message, Subscription
from .token_stream import TokenSubscription

log = logs.get()


class Bus:
    """Publish, request, serve, stream tokens, queue jobs, store objects and small values.

    When the connection was lost and is made again, in this order: subscriptions are made again, token
    streams are marked `dropped`, the streams of `ensure_streams` are made again (a memory stream does not
    outlive its server), job consumers start afresh, and the callbacks of `on_reconnect` run.

    JetStream tells when a stream was deleted. All that follows a reconnect follows, but for the
    subscriptions, which it does not touch.

    Make one with `Bus.connect`, or, without a server, with `MemoryNats` of `tests/harness/`.
    """

    def __init__(self, client: Client, *, watches_writes: bool = False, inbox_prefix: str = "_INBOX") -> None:
        self._client = client
        self._link = Link(self._client, inbox_prefix=inbox_prefix)
        self._healer = Healer(self._link, watches_writes=watches_writes)
        self._bucket = ObjectBucket(self._link, subjects.TOKENIZERS_BUCKET)
        self._images = ObjectBucket(
            self._link, subjects.IMAGES_BUCKET, max_bytes=max(MAX_OBJECT_BYTES, MAX_SOUND_BYTES)
        )
        self._on_loss: list[Callable[[], None]] = []
        self._on_connect: list[Callable[[], None]] = []
        self._token_streams: dict[TokenSubscription, int] = {}
        self._served: dict[Subscription, int] = {}
        self._connected = asyncio.Event()
        self._is_closing = False
        self._last_error: Exception | None = None
        # That a server does not know this user. It closes the connection, which may be the last error.
        self._refusal: Exception | None = None
        self._throttle = LogThrottle()
        # The servers, until the log said that they are away.
        self._awaited = ""

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        name: str,
        watches_writes: bool = False,
        connect_timeout_s: float = 5.0,
        tls: TlsFiles | None = None,
    ) -> Bus:
        """Connect to one of the comma-separated `url`s as `name`.

        Args:
            tls: how to speak it with servers at a URL of `tls://`, and with those that ask for it.
            watches_writes: whether to find out once a second if JetStream writes, for `write_problem`.

        Raises:
            Unavailable: none could be connected to in `connect_timeout_s` seconds.
            InvalidArgument: `url` is not one, or a file of `tls` cannot be used.
        """
        servers = parse_servers(url)
        client = NatsClient(tls or TlsFiles())
        if any(server.startswith("tls://") for server in servers):
            client.read_certificates()
        bus = cls(client, watches_writes=watches_writes, inbox_prefix=subjects.inbox_prefix(servers))
        bus._awaited = without_password(url)
        try:
            async with asyncio.timeout(connect_timeout_s):
                await client.open(
                    servers,
                    name=name,
                    on_error=bus.on_client_error,
                    on_disconnect=bus.on_client_disconnect,
                    on_reconnect=bus.on_client_reconnect,
                )
        except TimeoutError:
            await bus._abandon()
            message = f"cannot connect to NATS at {without_password(url)} (INFERFLUX_NATS_URL)"
            error = bus._refusal or bus._last_error
            reason = f": {error}" if error is not None else ""
            raise Unavailable(message + reason, reason="NATS_UNAVAILABLE") from None
        bus.begin()
        return bus

    def begin(self) -> None:
        """The client is connected: use it. The client tells what becomes of it by `on_client_...`."""
        self._link.listen()
        self._connected.set()
        self._healer.begin()

    @property
    def is_connected(self) -> bool:
        """True if the connection is there, and `on_connect` has told of it.

        The client has a connection before it has subscribed again: nothing has come on it yet.
        """
        return self._link.is_connected and self._connected.is_set()

    @property
    def is_clustered(self) -> bool:
        """True if its server is one of several."""
        return self._link.is_clustered

    @property
    def write_problem(self) -> str:
        """Why JetStream takes no jobs or leases, as far as is known; "" while it does.

        Who does not watch it learns of it only when a lost stream cannot be made again.
        """
        return self._healer.write_problem

    @property
    def max_payload(self) -> int:
        """Bytes a message may have."""
        return int(self._client.max_payload)

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Have `callback` awaited after every reconnect and every loss of a stream, once the streams are
        there again; once more with all that comes before it when it raises Unavailable or
        DeadlineExceeded."""
        self._healer.add_callback(callback)

    def on_connect(self, callback: Callable[[], None]) -> None:
        """Have `callback` called as soon as the connection is there again, whatever else was lost with it."""
        self._on_connect.append(callback)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever the connection is lost."""
        self._on_loss.append(callback)

    def discard_unsent(self, prefix: str) -> None:
        """Forget what was published to subjects that begin with `prefix` and has not been sent."""
        self._client.discard_unsent(prefix)

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send and forget. While the connection is away up to 2 MiB are kept and sent later.

        Raises:
            Unavailable: the outbound buffer is full.
        """
        try:
            self._link.send(subject, payload, "", headers)
        except Unavailable as full:
            await self._link.send_after_burst(subject, payload, headers, full)

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Return when the server has taken in everything sent before, subscriptions included.

        Raises:
            Unavailable: it did not say so in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            raise Unavailable("not connected to NATS", reason="NOT_CONNECTED") from None
        await self._link.flush(timeout_s)

    async def check_connection(self, timeout_s: float = 1.0) -> None:
        """Check that NATS answers at this moment, within `timeout_s`.

        Raises:
            Unavailable: it is not (NATS_UNAVAILABLE).
        """
        if not self.is_connected:
            raise Unavailable("the connection to NATS is lost", reason="NATS_UNAVAILABLE")
        try:
            await self._link.flush(timeout_s)
        except Unavailable:
            raise Unavailable("NATS does not answer", reason="NATS_UNAVAILABLE") from None

    async def request(
        self, subject: str, payload: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Ask, and wait for the answer.

        Raises:
            Unavailable: certainly not delivered: NOT_CONNECTED, or NO_RESPONDERS without a subscriber.
            DeadlineExceeded: no answer in time (BUS_TIMEOUT), or the connection broke (CONNECTION_LOST):
                the request may have been acted on.
            InferFluxError: whatever the handler raised.
        """
        reply = await self._link.request(subject, payload, timeout_s=timeout_s, headers=headers)
        if ERROR_CODE_HEADER in reply.headers:
            raise _refusal(reply)
        return reply.data

    async def request_many(
        self, subject: str, payload: bytes, *, timeout_s: float, is_last: Callable[[bytes], bool]
    ) -> list[bytes]:
        """Ask, and wait for the answers of all that serve the subject: until `is_last` says so of one, or
        `timeout_s` is over, or one refuses.

        Raises: as `request`, where no process answers, or each refuses.
        """

        def ends(reply: Reply) -> bool:
            return ERROR_CODE_HEADER in reply.headers or is_last(reply.data)

        replies = await self._link.request_many(subject, payload, timeout_s=timeout_s, is_last=ends)
        answers = [reply.data for reply in replies if ERROR_CODE_HEADER not in reply.headers]
        if replies and not answers:
            raise _refusal(replies[0])
        return answers

    async def serve(
        self, subject: str, handler: Callable[[Message], Awaitable[None]], *, queue: str = ""
    ) -> Subscription:
        """Have `handler` awaited for every message, one after the other.

        With `queue`, each message goes to one member of the group of that name.
        """
        served = Subscription(self, subject, handler, self._stop_serving)
        self._served[served] = self._client.tap(subject, served.on_message, queue)
        return served

    async def open_stream(self, subject: str) -> TokenSubscription:
        """Read a token subject. What this connection publishes afterwards is not missed; `flush` makes sure
        of what others publish."""
        stream = TokenSubscription(subject, self._close_stream)
        self._token_streams[stream] = self._client.tap(subject, stream.on_message)
        return stream

    async def ensure_streams(self, limits: StreamLimits) -> None:
        """Make the streams and the buckets, or change them to `limits`; and again when they are gone.

        A user of NATS who may not make streams waits until a scheduler has made them.

        Raises:
            Unavailable, DeadlineExceeded: JetStream does not answer, or no scheduler made the
                streams in time.
            Internal: a stream of this name exists and cannot be changed to ours.
        """
        await streams.until_streams(self._link, limits)
        self._healer.limits = limits

    async def enqueue(
        self,
        subject: str,
        payload: bytes,
        *,
        msg_id: str,
        attempt: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Put a job into the work queue: see `queueing.enqueue`. Empty when `msg_id` is taken."""
        return await queueing.enqueue(
            self._link,
            self._until_connected,
            lambda: self.write_problem,
            subject,
            payload,
            msg_id=msg_id,
            attempt=attempt,
            headers=headers,
        )

    def check_queue(self) -> None:
        """Check that the work queue can be written to, as far as is known.

        Raises:
            Unavailable: JetStream does not write at present (STORE_UNAVAILABLE).
        """
        if self.write_problem:
            raise queueing.not_writing()

    async def consume_jobs(
        self,
        *,
        max_outstanding: int,
        ack_wait_s: float = 60,
        partition: Partition = WHOLE,
    ) -> JobConsumer:
        """Take over the work queue, or a partition's part: every job not acknowledged yet is delivered,
        oldest first.

        The consumer that had it before ends with Unavailable (CONSUMER_TAKEN_OVER). At most
        `max_outstanding` jobs are held unacknowledged.

        Raises:
            Unavailable, DeadlineExceeded: JetStream or the stream is not there.
            InvalidArgument: models are divided into another number of partitions (PARTITIONS_OVERLAP).
        """
        consumer = JobConsumer(
            self._link,
            name=subjects.scheduler_consumer(partition),
            filters=subjects.jobs_of(partition),
            max_outstanding=max_outstanding,
            ack_wait_s=ack_wait_s,
        )
        await consumer.start()
        self._healer.add_consumer(consumer)
        return consumer

    async def replay(self, subject: str) -> list[bytes]:
        """Everything the TOKENS stream holds of a subject, oldest first.

        Raises:
            Unavailable, DeadlineExceeded: JetStream does not answer.
        """
        return await jetstream.read_subject(self._link, subjects.TOKENS_STREAM, subject)

    async def replay_one_by_one(self, subject: str) -> list[bytes]:
        """As `replay`, slower, for a user who may not read directly.

        Raises:
            Unavailable, DeadlineExceeded: JetStream does not answer.
        """
        return await jetstream.read_subject_one_by_one(self._link, subjects.TOKENS_STREAM, subject)

    async def put_object(self, name: str, data: bytes) -> None:
        """Store a tokenizer file; see `ObjectBucket.put`."""
        await self._bucket.put(name, data)

    async def get_object(self, name: str) -> bytes:
        """Read a tokenizer file, checked against its digest; NotFound if there is none."""
        return await self._bucket.get(name)

    async def put_image(self, name: str, data: bytes) -> None:
        """Store an image's pixels for some hours; see `ObjectBucket.put`."""
        await self._images.put(name, data)

    async def get_image(self, name: str) -> bytes:
        """Read an image's pixels, checked against their digest; NotFound if there are none."""
        return await self._images.get(name)

    def objects(self, bucket: str) -> ObjectBucket:
        """Files by name; `ensure_streams` makes the buckets."""
        return ObjectBucket(self._link, bucket)

    def key_value(self, bucket: str) -> KeyValueBucket:
        """Small values by key; `ensure_streams` makes the buckets."""
        return KeyValueBucket(self._link, bucket)

    async def close(self, *, drain_s: float = 1.0) -> None:
        """Send what waits, for at most `drain_s` seconds, and end everything. Safe to call twice."""
        if self._is_closing:
            return
        self._is_closing = True
        await self._healer.close()
        for served in list(self._served):
            await served.close()
        try:
            if self.is_connected and drain_s > 0:
                await self._link.flush(drain_s)
        except InferFluxError:
            log.warning("closed the bus before NATS took everything")
        if self._client.pending_data_size or not self.is_connected:
            self._client.discard_outbound()
        await self._abandon()

    async def _abandon(self) -> None:
        """Close the client, however it is."""
        with contextlib.suppress(OSError, TimeoutError, nats.errors.Error):
            async with asyncio.timeout(2.0):
                await self._client.close()

    async def _until_connected(self) -> None:
        await self._connected.wait()

    def _stop_serving(self, served: Subscription) -> None:
        if (sid := self._served.pop(served, None)) is not None:
            self._client.untap(sid)

    def _close_stream(self, stream: TokenSubscription) -> None:
        if (sid := self._token_streams.pop(stream, None)) is not None:
            self._client.untap(sid)

    def on_client_error(self, error: Exception) -> None:
        is_of_a_request = self._link.end_refused(str(error))
        if not is_of_a_request:
            self._last_error = error
        if "authorization violation" in str(error).lower():
            self._refusal = error
        if "permissions violation" in str(error) and not is_of_a_request:
            unlogged = self._throttle.unlogged("permissions")
            if unlogged is not None:
                log.warning("NATS does not let this user", error=str(error), unlogged=unlogged)
        if self._awaited and not self._healer.has_begun:
            log.warning("cannot connect to NATS yet", url=self._awaited, error=str(error))
            self._awaited = ""
        log.debug("NATS error", error=str(error))

    def on_client_disconnect(self) -> None:
        if self._is_closing or not self._healer.has_begun:
            return
        self._connected.clear()
        self._mark_dropped()
        self._link.lose_replies()
        for callback in self._on_loss:
            callback()
        log.warning("lost the connection to NATS", error=str(self._last_error or ""))

    def on_client_reconnect(self) -> None:
        metrics.BUS_RECONNECTS.inc()
        self._last_error = None
        self._mark_dropped()
        self._connected.set()
        for callback in self._on_connect:
            callback()
        self._healer.heal()
        log.info("connected to NATS again")

    def _mark_dropped(self) -> None:
        for stream in self._token_streams:
            stream.mark_dropped()


def _refusal(reply: Reply) -> InferFluxError:
    code = reply.headers[ERROR_CODE_HEADER]
    return from_code(
        int(code) if code.isdigit() else 13,
        reply.headers.get(ERROR_HEADER, ""),
        reason=reply.headers.get(ERROR_REASON_HEADER, ""),
    )
