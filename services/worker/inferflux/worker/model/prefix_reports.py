"""Writes what this worker has cached to the fleet's index, whenever Redis is there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from inferflux.common.prefixes.hashes import PrefixHasher
from inferflux.common.prefixes.index import Holder, PrefixIndex
from inferflux.common.prefixes.salt import SharedSalt
from inferflux.common.process import logs
from inferflux.common.process.tasks import is_set_within
from inferflux.common.redis import store
from inferflux.v1 import engine_pb2

from .cached_prefixes import CachedPrefixes

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from inferflux.worker.metrics import ModelMetrics

# How often the index is renewed, and checked for being as it was written.
_RENEW_S = 1.0
# Changes in one round trip.
_CHANGES_AT_ONCE = 8
# What has to be in the index before something else goes on waits no longer for Redis.
_REWRITE_LIMIT_S = 1.0
# Time to leave the index.
_LEAVE_S = 0.5

log = logs.get("worker.prefix_reports")


class PrefixReports:
    """Writer of the engine's reports on its cache: `take_in` takes them, `run` writes.

    Without Redis it costs nothing but hints. Every write names the version that it builds upon, so whatever
    was lost meanwhile is noticed within `_RENEW_S`, and all is written anew.

    Args:
        make_hasher: given the salt.
        report_again: has the engine report all that it has cached once more. Its tokens are not kept here.
    """

    def __init__(
        self,
        redis: Redis,
        holder: Holder,
        make_hasher: Callable[[bytes], PrefixHasher],
        metrics: ModelMetrics,
        *,
        report_again: Callable[[], None],
    ) -> None:
        self._index = PrefixIndex(redis)
        self._salt = SharedSalt(redis)
        self._holder = holder
        self._make_hasher = make_hasher
        self._metrics = metrics
        self._report_again = report_again
        self._prefixes = CachedPrefixes(make_hasher(self._salt.value).of)
        self._is_salt_known = False
        self._has_news = asyncio.Event()
        # Set when the index was written anew.
        self._rewritten: list[asyncio.Event] = []
        self._was_up = True

    def take_in(self, cached: Iterable[engine_pb2.CachedPrefix]) -> None:
        """The engine's cache has changed."""
        now_s = int(time.time())
        for each in cached:
            if self._is_salt_known:
                self._prefixes.report(each, now_s)
                self._has_news.set()

    def clear(self) -> None:
        """The engine is gone, with all that it had cached."""
        self._prefixes.clear()
        self._has_news.set()

    async def rewrite(self) -> None:
        """Write this worker's part of the index anew, and return when it is written, or cannot be soon."""
        is_written = asyncio.Event()
        self._rewritten.append(is_written)
        self._has_news.set()
        await is_set_within(is_written, _REWRITE_LIMIT_S)

    async def run(self) -> None:
        """Keep the index up to date, for ever."""
        while True:
            try:
                await self._keep_up()
            except store.FAILURES as error:
                self._fail(error)
                await asyncio.sleep(_RENEW_S)

    async def leave(self) -> None:
        """Nothing is found here any more."""
        with contextlib.suppress(*store.FAILURES):
            async with asyncio.timeout(_LEAVE_S):
                await self._index.forget(self._holder)

    async def _keep_up(self) -> None:
        renew_s = 0.0
        while True:
            if time.monotonic() >= renew_s:
                renew_s = time.monotonic() + _RENEW_S
                await self._renew()
            await self._write_all_wanted()
            await is_set_within(self._has_news, max(0.0, renew_s - time.monotonic()))
            self._has_news.clear()

    async def _renew(self) -> None:
        if await self._salt.refresh() or not self._is_salt_known:
            self._prefixes.use(self._make_hasher(self._salt.value).of)
            self._is_salt_known = True
            self._report_again()
        if self._prefixes.is_written and not await self._index.write(
            self._holder, [self._prefixes.renewal()]
        ):
            self._prefixes.begin_anew()
            self._metrics.index_losses.inc()
        if not self._was_up:
            self._was_up = True
            log.info("the prefix index is written again")

    async def _write_all_wanted(self) -> None:
        rewritten, self._rewritten = self._rewritten, []
        if rewritten:
            self._prefixes.begin_anew()
        await self._write()
        for is_written in rewritten:
            is_written.set()

    async def _write(self) -> None:
        while self._prefixes.has_changes:
            changes = self._prefixes.take_changes()
            while some := list(islice(changes, _CHANGES_AT_ONCE)):
                if not await self._index.write(self._holder, some):
                    self._prefixes.begin_anew()
                    self._metrics.index_losses.inc()
                    break
            self._metrics.index_blocks.set(len(self._prefixes))

    def _fail(self, error: Exception) -> None:
        self._prefixes.begin_anew()
        self._metrics.index_failures.inc()
        if self._was_up:
            self._was_up = False
            log.warning("the prefix index cannot be written: no hints meanwhile", why=str(error))


class NoReports:
    """Reports of an engine that caches nothing: there is nothing to write."""

    def take_in(self, cached: Iterable[engine_pb2.CachedPrefix]) -> None:
        pass

    def clear(self) -> None:
        pass

    async def rewrite(self) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def leave(self) -> None:
        pass
