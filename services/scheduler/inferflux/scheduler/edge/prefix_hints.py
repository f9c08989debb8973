"""Lookup of the workers that have cached part of a prompt, in the fleet's index, before a job enters the
queue.

The leader looks it up, for three reasons. Redis is one hop away from it. A job that is
taken over by another leader is looked up again, and not placed by what was true long ago. And the gateway's
job stays small: hashes of a long prompt would take as much room as its tokens.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from inferflux.common.contract.callers.cache_scope import cache_scope_of
from inferflux.common.prefixes.hashes import BLOCK_TOKENS, PrefixHasher, packed
from inferflux.common.prefixes.index import Holder, PrefixIndex
from inferflux.common.prefixes.salt import SharedSalt
from inferflux.common.process import logs
from inferflux.common.redis import store
from inferflux.scheduler.core.workers.slots import WorkerSlots
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.v1 import scheduler_pb2

if TYPE_CHECKING:
    from redis.asyncio import Redis

# By worker id: prompt tokens that it has cached, and that a request can begin with there.
Hints = Mapping[str, int]

_NONE: Hints = {}
# How often the salt is compared with that of the others, and how long a Redis that failed is left alone.
_REFRESH_S = 1.0

log = logs.get("scheduler.prefix_hints")


class PrefixHints:
    """Looks prompts up. Whatever happens to Redis, a lookup returns within `limit_s`, and then without hints.

    Args:
        workers_of: workers that may have cached prefixes of a model.
        is_wanted: whether hints for a request can change anything.
        limit_s: longest wait for Redis.
    """

    def __init__(
        self,
        redis: Redis,
        workers_of: Callable[[str], Collection[WorkerSlots]],
        metrics: SchedulerMetrics,
        *,
        is_wanted: Callable[[scheduler_pb2.InferenceRequest], bool],
        limit_s: float,
    ) -> None:
        self._index, self._salt = PrefixIndex(redis), SharedSalt(redis)
        self._workers_of = workers_of
        self._is_wanted = is_wanted
        self._metrics = metrics
        self._limit_s = limit_s
        # By model digest, with the salt as it is.
        self._hashers: dict[str, PrefixHasher] = {}
        # A lookup that took too long, and has not ended yet.
        self._late: asyncio.Task[list[Hints]] | None = None
        self._is_up = False

    async def keep_up(self) -> None:
        """Follow the salt and whether Redis is there, for ever."""
        while True:
            try:
                if await self._salt.refresh():
                    self._hashers.clear()
            except store.FAILURES as error:
                self._note(is_up=False, why=str(error))
            else:
                self._note(is_up=True)
            await asyncio.sleep(_REFRESH_S)

    async def look_up(self, requests: Sequence[scheduler_pb2.InferenceRequest]) -> list[Hints]:
        """The hints for each request: of its prompt, and on a retry of what was generated before."""
        holders: dict[str, Mapping[str, list[Holder]]] = {}
        asked = [
            (at, request)
            for at, request in enumerate(requests)
            if self._can_change(request) and self._holders(request.model, holders)
        ]
        hints = [_NONE] * len(requests)
        if not self._is_up or (self._late is not None and not self._late.done()):
            self._metrics.count_lookups("skipped", len(asked))
        elif asked:
            began_s = monotonic()
            found = await self._within_limit([request for _, request in asked], holders)
            self._metrics.lookup_time.observe(monotonic() - began_s)
            for (at, _), each in zip(asked, found, strict=False):
                hints[at] = each
        return hints

    def _can_change(self, request: scheduler_pb2.InferenceRequest) -> bool:
        """True if hints for a request could be found, and would matter."""
        n_tokens = len(request.prompt_token_ids) + len(request.generated_token_ids)
        return n_tokens >= BLOCK_TOKENS and self._is_wanted(request)

    async def _within_limit(
        self,
        requests: Sequence[scheduler_pb2.InferenceRequest],
        holders: Mapping[str, Mapping[str, list[Holder]]],
    ) -> list[Hints]:
        """Return the hints that are found in time. A lookup that takes longer is left to end: while it lasts,
        none begins."""
        lookup = asyncio.create_task(self._find(requests, holders))
        lookup.add_done_callback(_retrieve)
        try:
            await asyncio.wait({lookup}, timeout=self._limit_s)
        except asyncio.CancelledError:
            lookup.cancel()
            raise
        if not lookup.done():
            self._late = lookup
            self._metrics.count_lookups("late", len(requests))
            return []
        if (error := lookup.exception()) is not None:
            if not isinstance(error, store.FAILURES):
                raise error
            self._note(is_up=False, why=str(error))
            self._metrics.count_lookups("failed", len(requests))
            return []
        found = lookup.result()
        for each in found:
            self._metrics.count_lookups("hit" if each else "miss")
        return found

    async def _find(
        self,
        requests: Sequence[scheduler_pb2.InferenceRequest],
        holders: Mapping[str, Mapping[str, list[Holder]]],
    ) -> list[Hints]:
        asked: list[tuple[list[Holder], list[bytes]]] = []
        asked_for: list[int] = []
        for at, request in enumerate(requests):
            tokens = packed(request.prompt_token_ids) + packed(request.generated_token_ids)
            scope = cache_scope_of(request)
            for digest, workers in holders[request.model].items():
                asked.append((workers, self._hasher(digest).of(tokens, scope)))
                asked_for.append(at)
        hints: list[dict[str, int]] = [{} for _ in requests]
        for at, matches in zip(asked_for, await self._index.longest(asked), strict=True):
            hints[at] |= {
                holder.worker_id: match.usable * BLOCK_TOKENS
                for holder, match in matches.items()
                if match.usable
            }
        return list(hints)

    def _holders(
        self, model: str, known: dict[str, Mapping[str, list[Holder]]]
    ) -> Mapping[str, list[Holder]]:
        """Return the holders of a model by digest: a model's name may stand for another file on some workers.
        Empty where no worker shares prefixes.

        Args:
            known: of this lookup, by model: there may be hundreds of workers.
        """
        if (found := known.get(model)) is not None:
            return found
        holders: dict[str, list[Holder]] = defaultdict(list)
        known[model] = holders
        for worker in self._workers_of(model):
            digest = worker.digests.get(model)
            if digest is not None and worker.shares_prefixes:
                holders[digest].append(Holder(worker.worker_id, worker.incarnation))
        return holders

    def _hasher(self, digest: str) -> PrefixHasher:
        hasher = self._hashers.get(digest)
        if hasher is None:
            hasher = PrefixHasher(self._salt.value, model_digest=digest)
            self._hashers[digest] = hasher
        return hasher

    def _note(self, *, is_up: bool, why: str = "") -> None:
        if is_up != self._is_up:
            self._is_up = is_up
            if is_up:
                log.info("the prefix index answers")
            else:
                log.warning("the prefix index does not answer: no hints meanwhile", why=why)


def _retrieve(task: asyncio.Task[list[Hints]]) -> None:
    """Retrieve what a late lookup raised: no caller may be left to do it."""
    if not task.cancelled():
        task.exception()
