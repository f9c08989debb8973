"""Writes what this worker has cached to the fleet's index, whenever Redis is there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from inferflux.common import logs, store
from inferflux.common.prefixes.hashes import PrefixHasher
from inferflux.common.prefixes.index import Holder, PrefixIndex
from inferflux.common.prefixes.salt import SharedSalt
from inferflux.v1 import engine_pb2

from .cached_prefixes import CachedPrefixes

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from .metrics import ModelMetrics

# How often the index is renewed, and checked for being as it was written.
_RENEW_S = 1.0
# Changes in one round trip.
_CHANGES_AT_ONCE = 8
# Time to leave the index.
_LEAVE_S = 0.5

log = logs.get("worker.prefix_reports")


class PrefixReports:
    """What the engine reports of its cache goes in by `take_in`; `run` writes it.

    Without Redis it costs nothing but hints. Every write names the version that it builds upon, so whatever
    was lost meanwhile is noticed within `_RENEW_S`, and all is written anew.

    Args:
        make_hasher: given the salt.
    """

    def __init__(
        self,
        redis: Redis,
        holder: Holder,
        make_hasher: Callable[[bytes], PrefixHasher],
        metrics: ModelMetrics,
    ) -> None:
        self._index = PrefixIndex(redis)
        self._salt = SharedSalt(redis)
        self._holder = holder
        self._make_hasher = make_hasher
        self._metrics = metrics
        self._prefixes = CachedPrefixes(make_hasher(self._salt.value).of)
        # By sequence: what was reported before the salt is agreed upon.
        self._early: dict[int, engine_pb2.CachedPrefix] = {}
        self._is_salt_known = False
        self._has_news = asyncio.Event()
        self._was_up = True

    def take_in(self, cached: Iterable[engine_pb2.CachedPrefix]) -> None:
        """The engine's cache has changed."""
        now_s = int(time.time())
        for each in cached:
            if self._is_salt_known:
                self._prefixes.report(each, now_s)
                self._has_news.set()
            elif each.token_ids:
                self._early[each.entry] = each
            else:
                self._early.pop(each.entry, None)

    def clear(self) -> None:
        """The engine is gone, with all that it had cached."""
        self._early.clear()
        self._prefixes.clear()
        self._has_news.set()

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
            await self._write()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_news.wait(), max(0.0, renew_s - time.monotonic()))
            self._has_news.clear()

    async def _renew(self) -> None:
        if await self._salt.refresh():
            self._prefixes.use(self._make_hasher(self._salt.value).of)
        self._is_salt_known = True
        early, self._early = self._early, {}
        self.take_in(early.values())
        if self._prefixes.is_written and not await self._index.write(
            self._holder, [self._prefixes.renewal()]
        ):
            self._prefixes.begin_anew()
            self._metrics.index_was_lost()
        if not self._was_up:
            self._was_up = True
            log.info("the prefix index is written again")

    async def _write(self) -> None:
        while self._prefixes.has_changes:
            changes = self._prefixes.take_changes()
            while some := list(islice(changes, _CHANGES_AT_ONCE)):
                if not await self._index.write(self._holder, some):
                    self._prefixes.begin_anew()
                    self._metrics.index_was_lost()
                    break
            self._metrics.index_written(len(self._prefixes))

    def _fail(self, error: Exception) -> None:
        self._prefixes.begin_anew()
        self._metrics.index_failed()
        if self._was_up:
            self._was_up = False
            log.warning("the prefix index cannot be written: no hints meanwhile", why=str(error))
