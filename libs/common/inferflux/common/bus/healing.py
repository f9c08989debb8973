"""Recovery of subscriptions and streams after a lost connection or a deleted stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, Unavailable
from inferflux.common.contract.requests.stream_limits import StreamLimits
from inferflux.common.process import logs, metrics
from inferflux.common.process.tasks import cancel_all

from . import jetstream, streams
from .jobs import JobConsumer
from .link import STORE_UNAVAILABLE, Link

log = logs.get()

_RETRY_S = 0.2
# Between two questions to JetStream whether it writes.
_PROBE_INTERVAL_S = 1.0
# nats-server tells of a deletion before it removes the files. A stream that is made too early loses its own
# with them, and takes no message until the server starts anew.
_DELETION_S = 0.5
# Between two looks of a user who may make streams whether all are there, on as many servers as can be.
_CHECK_INTERVAL_S = 10.0


class Healer:
    """Heals a bus when `heal` asks for it, or when JetStream tells that a stream of ours was deleted, or that
    another server of a cluster leads that of tokens: what was published before it did is not in there.

    It makes the streams again, has job consumers start afresh, and awaits the callbacks, in this order. After
    a failure it does all of it once more. Now and then it looks whether a stream is gone, or can be kept on
    more servers, though nothing told of it.

    Args:
        watches_writes: whether to find out once a second if JetStream writes, for `write_problem`.

    Attributes:
        limits: of the streams; None until they were made.
        write_problem: why JetStream takes no jobs or leases, as far as is known; "" while it does.
        copies_behind: copies of streams, as `stream on server`, that lack something for two looks now.
    """

    def __init__(self, link: Link, *, watches_writes: bool) -> None:
        self.limits: StreamLimits | None = None
        self.write_problem = ""
        self._link = link
        self._watches_writes = watches_writes
        self._callbacks: list[Callable[[], Awaitable[None]]] = []
        self._consumers: list[JobConsumer] = []
        self._is_ill = asyncio.Event()
        self._are_deleted_at = 0.0
        self._checked_at = 0.0
        self.copies_behind: set[str] = set()
        # At the last look alone.
        self._behind: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The connection is there."""
        self._link.client.tap(subjects.ANY_STREAM_DELETED, self._on_deleted)
        self._link.client.tap(subjects.TOKENS_LED, self._on_led)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="bus healer")

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    def heal(self) -> None:
        """Check subscriptions and streams soon: something may be gone."""
        self._is_ill.set()

    def add_callback(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Have `callback` awaited last of all."""
        self._callbacks.append(callback)

    def add_consumer(self, consumer: JobConsumer) -> None:
        """Have this consumer recover, until it is closed."""
        self._consumers = [*(other for other in self._consumers if not other.is_closed), consumer]

    async def close(self) -> None:
        """Heal no more, and close the consumers."""
        if self._task is not None:
            await cancel_all([self._task])
        for consumer in self._consumers:
            await consumer.close()

    async def _run(self) -> None:
        said = ""
        while True:
            try:
                await self._until_ill()
                await self._until_deleted()
                self._is_ill.clear()
                await self._heal()
                said = ""
            except InferFluxError as error:
                if error.reason != said:
                    log.warning("not recovered yet", reason=error.reason, error=error.message)
                said = error.reason
                if self._link.is_connected:
                    await asyncio.sleep(_RETRY_S)
                    self._is_ill.set()
            except Exception:
                # A process that heals no more would not be seen to be ill.
                metrics.UNEXPECTED_ERRORS.labels(where="bus healer").inc()
                log.exception("healing the bus failed")
                await asyncio.sleep(_PROBE_INTERVAL_S)
                self._is_ill.set()

    async def _until_ill(self) -> None:
        """Return after a reconnect, or when a stream of ours was deleted or has another leader."""
        while not self._is_ill.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_INTERVAL_S if self._watches_writes else _CHECK_INTERVAL_S):
                    await self._is_ill.wait()
                    return
            if self.limits is not None and self._link.is_connected:
                if self._watches_writes:
                    await self._probe_writes()
                await self._check_streams(self.limits)

    async def _until_deleted(self) -> None:
        """Return when what was deleted last is gone from the server's disk too."""
        loop = asyncio.get_running_loop()
        while True:
            left_s = self._are_deleted_at - loop.time()
            if left_s <= 0:
                return
            await asyncio.sleep(left_s)

    async def _heal(self) -> None:
        if self.limits is not None:
            await self._make_streams_again(self.limits)
        for consumer in self._consumers:
            await consumer.recover()
        for callback in self._callbacks:
            try:
                await callback()
            except (Unavailable, DeadlineExceeded):
                raise
            except Exception:
                metrics.UNEXPECTED_ERRORS.labels(where="reconnect").inc()
                log.exception("a reconnect callback failed")

    async def _make_streams_again(self, limits: StreamLimits) -> None:
        problem = await streams.write_problem(self._link) if self._watches_writes else ""
        try:
            await streams.ensure_streams(self._link, limits)
        except InferFluxError as error:
            if error.reason == STORE_UNAVAILABLE:
                problem = problem or error.message
            if problem:
                self._note_write_problem(problem)
            raise
        self._note_write_problem(problem)

    async def _probe_writes(self) -> None:
        try:
            self._note_write_problem(await streams.write_problem(self._link))
        except InferFluxError as error:
            log.debug("could not ask whether JetStream writes", reason=error.reason)

    async def _check_streams(self, limits: StreamLimits) -> None:
        """Heal if a stream is gone; have a cluster keep them on more servers. Not for users who may not."""
        now = asyncio.get_running_loop().time()
        if not self._link.makes_streams or now < self._checked_at + _CHECK_INTERVAL_S:
            return
        self._checked_at = now
        try:
            if await streams.are_missing(self._link):
                log.warning("a stream was missing")
                self.heal()
            elif self._link.is_clustered:
                await streams.ensure_streams(self._link, limits)
                self._note_behind(await streams.copies_behind(self._link))
        except InferFluxError as error:
            log.debug("could not look at the streams", reason=error.reason, error=error.message)

    def _note_behind(self, behind: set[str]) -> None:
        """Tell of copies that were behind at the look before, too: a server that starts is for a while."""
        lasting = behind & self._behind
        if lasting != self.copies_behind:
            if lasting:
                log.warning("servers have not all of some streams", copies=sorted(lasting))
            else:
                log.info("servers have all of the streams")
        self._behind, self.copies_behind = behind, lasting

    def _note_write_problem(self, problem: str) -> None:
        if problem and not self.write_problem:
            log.error("JetStream does not write any more", problem=problem)
        elif self.write_problem and not problem:
            log.info("JetStream writes again")
        self.write_problem = problem

    def _on_led(self, *_: object) -> None:
        if self.limits is not None:
            log.info("another server leads the stream of tokens")
            self.heal()

    def _on_deleted(self, subject: bytes, *_: object) -> None:
        if self.limits is not None and jetstream.is_ours(name := subject.decode()):
            log.warning("a stream was deleted", advisory=name)
            self._are_deleted_at = asyncio.get_running_loop().time() + _DELETION_S
            self._is_ill.set()
