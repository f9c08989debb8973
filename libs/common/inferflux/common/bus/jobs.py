"""Taking jobs off the work queue.

The pump asks JetStream for a batch, asks again when the batch is used up, expired, refused or silent, and
starts afresh when the connection is made again. Jobs that come again while they are still held here (the
connection broke, an acknowledgement was lost) are recognised and not handed out twice.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferflux.common.contract import partitions, subjects
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, InvalidArgument, Unavailable
from inferflux.common.process import logs, metrics
from inferflux.common.process.bad_messages import BadMessages
from inferflux.common.process.tasks import cancel_all

from . import jetstream
from .jetstream import Delivery, parse_delivery
from .link import ApiError, Link
from .pinned_nats import decode_headers
from .server_clock import ServerClock

log = logs.get()

_bad = BadMessages(metrics.BUS_BAD_MESSAGES)

_BATCH = 256
_EXPIRES_S = 30.0
# A pull that reaches a consumer while that is being deleted is never answered, so silence has to be short.
_HEARTBEAT_S = 1.0
_SILENCE_S = 2.5 * _HEARTBEAT_S
_RETRY_WAIT_S = 0.2
_REMEMBERED = 16_384
_CONFIRM_S = 1.0
# A consumer without pulls is deleted: one of an earlier division into partitions would keep its subjects.
_INACTIVE_S = 2 * _EXPIRES_S
# Two schedulers may make it at the same time.
_MAKING_TRIES = 5


@dataclass(slots=True, weakref_slot=True, eq=False)
class Job:
    """A job, held until `ack` or `term`.

    Attributes:
        is_inherited: it may have gone to a consumer before this one.
        received_unix_s: when it came here, by the clock of this host.
    """

    _consumer: JobConsumer
    key: tuple[int, int]
    data: bytes
    headers: Mapping[str, str]
    reply: str
    is_inherited: bool = False
    received_unix_s: float = field(default_factory=time.time)

    @property
    def sequence(self) -> int:
        """Its place in the queue, rising."""
        return self.key[0]

    @property
    def stored_unix_s(self) -> float:
        """Time at which the queue stored it, in Unix seconds by the server's clock: see `age_s`."""
        return self.key[1] / 1e9

    async def ack(self) -> None:
        """Done: remove it from the queue. If this is lost and the job comes again, it is said again."""
        self._consumer.settle(self, b"+ACK")

    async def in_progress(self) -> None:
        """Still at it: the acknowledgement may take another `ack_wait_s`."""
        self._consumer.send(self.reply, b"+WPI")

    async def term(self) -> None:
        """Never again: remove it, for it cannot be done."""
        self._consumer.settle(self, b"+TERM")


class JobConsumer:
    """An async iterator of jobs, for one reader.

    Args:
        name: of the durable: another one made under the same name takes over.
        filters: the subjects it takes; none: all.
    """

    def __init__(
        self, link: Link, *, name: str, filters: Sequence[str], max_outstanding: int, ack_wait_s: float
    ) -> None:
        self._link = link
        self._name = name
        self._filters = list(filters)
        self._ack_wait_s = ack_wait_s
        self._max_outstanding = max_outstanding
        self._batch = min(_BATCH, max_outstanding)
        self._inbox = f"{link.inbox_prefix}.{secrets.token_hex(11)}"
        self._confirmations = f"{self._inbox}.ack"
        self._confirmations_prefix = self._confirmations.encode()
        self._owner = secrets.token_hex(8)
        self._pulls = itertools.count(1)
        self._pull_subject = b""
        self._remaining = 0
        self._last_message_s = 0.0
        self._pulled_at = 0.0
        self._buffer: deque[Job] = deque()
        self._held: dict[tuple[int, int], Job] = {}
        self._settled: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        # Reply subjects of acknowledgements that the server has not confirmed.
        self._unconfirmed: set[bytes] = set()
        self._confirmed = asyncio.Event()
        self._answers = itertools.count(1)
        self._arrived = asyncio.Event()
        self._wake = asyncio.Event()
        self._error: InferFluxError | None = None
        self._is_closed = False
        self._sid = 0
        self._task: asyncio.Task[None] | None = None
        # Whether the durable is ours is known between two of its changes, not within one.
        self._changing = asyncio.Lock()
        # The server of a cluster that led the consumer when it was made.
        self._leader = ""
        self._clock = ServerClock(link, subjects.JOBS_STREAM)
        # When the queue was made, and the last place in it before this consumer was there.
        self._queue_made = ""
        self._inherited_through = 0

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def start(self) -> None:
        """Make the durable anew, so that everything unacknowledged comes again, and start pulling.

        Raises:
            InvalidArgument: another consumer takes some of the same subjects.
            Unavailable, DeadlineExceeded: JetStream or the stream is not there.
        """
        await self._make_consumer()
        self._sid = self._link.client.tap(f"{self._inbox}.*", self._on_message)
        self._task = asyncio.get_running_loop().create_task(self._pump(), name="job pump")

    @property
    def n_held(self) -> int:
        """Jobs that were handed out, or are about to be, and are not settled."""
        return len(self._held)

    async def age_s(self, job: Job) -> float:
        """Seconds since the queue stored a job, whatever the clock of this host says."""
        return await self._clock.age_s(job.stored_unix_s)

    async def has_all(self) -> bool:
        """True if every job of the queue has come here: JetStream has none to deliver, or to deliver again.

        Raises:
            Unavailable, DeadlineExceeded: JetStream does not answer.
        """
        info = await self._info()
        if info is None or not self._is_own(info) or info["num_pending"]:
            return False
        return bool(info["num_ack_pending"] <= self.n_held)

    async def recover(self) -> None:
        """After a reconnect, or once the stream was made again: have what was lost on the way delivered
        again at once.

        Raises:
            Unavailable, DeadlineExceeded, Internal: could not; try again.
        """
        if self._error is not None or self._is_closed:
            return
        async with self._changing:
            info = await self._info()
            if info is not None and not self._is_own(info):
                self._fail(_taken_over())
                return
            await self._make_consumer()
        self._pull_subject = b""
        self._wake.set()

    async def close(self) -> None:
        """Stop, once the server has taken the acknowledgements. Jobs still held come again to the next."""
        if self._is_closed:
            return
        self._is_closed = True
        self._arrived.set()
        if self._task is not None:
            await cancel_all([self._task])
        if self._link.is_connected:
            await self._until_confirmed()
        self._link.client.untap(self._sid)

    async def _until_confirmed(self) -> None:
        try:
            async with asyncio.timeout(_CONFIRM_S):
                while self._unconfirmed:
                    self._confirmed.clear()
                    await self._confirmed.wait()
        except TimeoutError:
            log.warning("acknowledgements were not confirmed", count=len(self._unconfirmed))

    def __aiter__(self) -> AsyncIterator[Job]:
        return self

    async def __anext__(self) -> Job:
        while not self._buffer:
            if self._is_closed:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        job = self._buffer.popleft()
        if len(self._buffer) * 2 == self._batch or not self._buffer:
            self._wake.set()
        return job

    def settle(self, job: Job, answer: bytes) -> None:
        """Send the last word on a job, and remember it in case the job comes again."""
        self._held.pop(job.key, None)
        self._settled[job.key] = answer
        if len(self._settled) > _REMEMBERED:
            self._settled.popitem(last=False)
        self._tell(job.reply, answer)

    def _tell(self, reply: str, answer: bytes) -> None:
        """Acknowledge, and ask for a confirmation: a consumer that is deleted drops what it has not read."""
        confirmation = f"{self._confirmations}{next(self._answers)}"
        self._link.send(reply, answer, confirmation)
        self._unconfirmed.add(confirmation.encode())

    def send(self, reply: str, answer: bytes) -> None:
        self._link.send(reply, answer)

    def _on_message(self, subject: bytes, reply: bytes, data: bytes, header_block: bytes | None) -> None:
        if subject.startswith(self._confirmations_prefix):
            self._unconfirmed.discard(subject)
            self._confirmed.set()
            return
        self._last_message_s = asyncio.get_running_loop().time()
        status, headers = decode_headers(header_block)
        if status:
            if status != 100 and subject == self._pull_subject:
                self._pull_subject = b""
                self._wake.set()
            return
        self._remaining -= 1
        if self._remaining <= 0:
            self._wake.set()
        try:
            delivery = parse_delivery(reply)
        except ValueError:
            _bad.note("delivery", f"no delivery of the work queue: {reply[:100]!r}")
            return
        self._take_in(delivery, reply.decode(), data, headers)

    def _take_in(self, delivery: Delivery, reply: str, data: bytes, headers: dict[str, str]) -> None:
        if (job := self._held.get(delivery.key)) is not None:
            job.reply = reply
        elif (answer := self._settled.get(delivery.key)) is not None:
            try:
                self._tell(reply, answer)
            except InferFluxError:
                log.debug("could not repeat an acknowledgement", sequence=delivery.sequence)
        else:
            is_inherited = delivery.sequence <= self._inherited_through
            job = Job(self, delivery.key, data, headers, reply, is_inherited=is_inherited)
            self._held[job.key] = job
            self._buffer.append(job)
            self._arrived.set()

    async def _pump(self) -> None:
        while self._error is None:
            try:
                await self._step()
            except (Unavailable, DeadlineExceeded) as error:
                log.debug("pulling jobs failed", reason=error.reason)
                await asyncio.sleep(_RETRY_WAIT_S)
            except InferFluxError as error:
                self._fail(error)

    async def _step(self) -> None:
        """Have one pull open, unless the buffer is full or the connection away; then wait for a change."""
        self._wake.clear()
        if self._pull_is_over() and self._link.is_connected and len(self._buffer) * 2 <= self._batch:
            if self._remaining > 0:  # it ended unused: expired, or the consumer is gone
                await self._check_consumer()
            if self._error is None:
                self._pull()
        try:
            async with asyncio.timeout(_SILENCE_S):
                await self._wake.wait()
        except TimeoutError:
            if asyncio.get_running_loop().time() - self._last_message_s >= _SILENCE_S:
                self._pull_subject = b""

    def _pull_is_over(self) -> bool:
        return self._pull_subject == b"" or self._remaining <= 0

    def _pull(self) -> None:
        subject = f"{self._inbox}.{next(self._pulls)}"
        batch = self._batch - len(self._buffer)
        body = {
            "batch": batch,
            "expires": round(_EXPIRES_S * 1e9),
            "idle_heartbeat": round(_HEARTBEAT_S * 1e9),
        }
        next_subject = f"$JS.API.CONSUMER.MSG.NEXT.{subjects.JOBS_STREAM}.{self._name}"
        self._link.send(next_subject, json.dumps(body).encode(), subject)
        self._pull_subject = subject.encode()
        self._remaining = batch
        self._pulled_at = self._last_message_s = asyncio.get_running_loop().time()

    async def _check_consumer(self) -> None:
        """Make the consumer again if it is gone, or if another server of a cluster leads it now; end this one
        if it is someone else's."""
        if self._pulled_at + _RETRY_WAIT_S > asyncio.get_running_loop().time():
            await asyncio.sleep(_RETRY_WAIT_S)
        async with self._changing:
            info = await self._info()
            if not (await self._create() if info is None else self._is_own(info)):
                self._fail(_taken_over())
            elif info is not None and self._has_moved(info):
                # Deliveries and acknowledgements that were under way are lost, and would wait for `ack_wait`.
                await self._make_consumer()

    async def _look_at_queue(self) -> None:
        """Note what others may have had of it. A queue that was made anew counts from 1 again, and all of its
        jobs come here first."""
        try:
            info = await self._link.api(f"STREAM.INFO.{subjects.JOBS_STREAM}")
        except ApiError as error:
            if error.err_code == jetstream.STREAM_NOT_FOUND:
                raise _no_queue() from None
            raise error.to_error() from error
        self._clock.note(info)
        made = info["created"]
        if self._task is None:
            self._inherited_through = int(info["state"]["last_seq"])
        elif made != self._queue_made:
            log.info("the queue was made anew", made=made, before=self._queue_made)
            self._inherited_through = 0
        self._queue_made = made

    async def _info(self) -> dict[str, Any] | None:
        try:
            return await self._link.api(f"CONSUMER.INFO.{subjects.JOBS_STREAM}.{self._name}")
        except ApiError as error:
            if error.err_code in (jetstream.CONSUMER_NOT_FOUND, jetstream.STREAM_NOT_FOUND):
                return None
            raise error.to_error() from error

    async def _make_consumer(self) -> None:
        """Make it in place of whatever has its name."""
        for _try in range(_MAKING_TRIES):
            try:
                await self._link.api(f"CONSUMER.DELETE.{subjects.JOBS_STREAM}.{self._name}")
            except ApiError as error:
                if error.err_code == jetstream.STREAM_NOT_FOUND:
                    raise _no_queue() from None
                if error.err_code != jetstream.CONSUMER_NOT_FOUND:
                    raise error.to_error() from error
            if await self._create():
                return
        raise Unavailable("other schedulers make the same consumer", reason="CONSUMER_TAKEN_OVER")

    async def _create(self) -> bool:
        """False when there is another of its name."""
        await self._look_at_queue()
        body = {
            "stream_name": subjects.JOBS_STREAM,
            "action": "create",
            "config": {
                "durable_name": self._name,
                # Unlike anyone else's, which would be taken for this one.
                "description": self._owner,
                "filter_subjects": self._filters,
                "deliver_policy": "all",
                "ack_policy": "explicit",
                "ack_wait": round(self._ack_wait_s * 1e9),
                "max_ack_pending": self._max_outstanding,
                "max_deliver": -1,
                "inactive_threshold": round(_INACTIVE_S * 1e9),
            },
        }
        try:
            info = await self._link.api(f"CONSUMER.CREATE.{subjects.JOBS_STREAM}.{self._name}", body)
        except ApiError as error:
            if error.err_code == jetstream.CONSUMER_EXISTS:
                return False
            if error.err_code == jetstream.STREAM_NOT_FOUND:
                raise _no_queue() from None
            if error.err_code in jetstream.CONSUMERS_OVERLAP:
                raise _overlap() from None
            raise error.to_error() from error
        self._leader = jetstream.leader_of(info)
        self._unconfirmed.clear()  # what they acknowledged is gone, or comes again and is told again
        self._confirmed.set()
        return True

    def _has_moved(self, info: Mapping[str, Any]) -> bool:
        """True if another server leads the consumer than when it was made, as far as is known."""
        leader = jetstream.leader_of(info)
        self._leader = self._leader or leader
        if leader in ("", self._leader):
            return False
        log.info("another server leads the consumer", before=self._leader, leader=leader)
        return True

    def _is_own(self, info: Mapping[str, Any]) -> bool:
        """True if the consumer was made here: by a request that was not answered, too."""
        return bool(info["config"].get("description") == self._owner)

    def _fail(self, error: InferFluxError) -> None:
        self._error = error
        self._arrived.set()
        self._wake.set()


def _taken_over() -> Unavailable:
    return Unavailable("another scheduler consumes the queue", reason="CONSUMER_TAKEN_OVER")


def _no_queue() -> Unavailable:
    return Unavailable("the work queue does not exist yet", reason="QUEUE_UNAVAILABLE")


def _overlap() -> InvalidArgument:
    message = (
        f"models are divided into another number of partitions ({partitions.VARIABLE}) by a scheduler that "
        f"takes the same jobs; if none runs any more, wait {_INACTIVE_S:g} s"
    )
    return InvalidArgument(message, field=partitions.VARIABLE, reason="PARTITIONS_OVERLAP")
