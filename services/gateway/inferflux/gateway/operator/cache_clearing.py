"""Clearing caches: of workers, by the scheduler that leads them, and of answers, in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from inferflux.common.contract.callers.cache_scope import scope_of_tenant
from inferflux.common.contract.errors import InferFluxError, InvalidArgument, NotFound
from inferflux.common.redis import store
from inferflux.gateway.answers import store as answer_store
from inferflux.v1 import admin_pb2, scheduler_pb2

if TYPE_CHECKING:
    from redis.asyncio import Redis

# Workers that are asked at the same time.
_WORKERS_AT_ONCE = 32


class ClearsWorkers(Protocol):
    """Has a worker clear its cache; `inferflux.gateway.operator.scheduler_admin.SchedulerAdmin` does."""

    async def clear_cache(self, request: scheduler_pb2.ClearWorkerCache) -> scheduler_pb2.ClearedWorker: ...


class LiveWorkers(Protocol):
    """Knows the workers and their models, as `inferflux.gateway.models.models.ModelRegistry` does."""

    async def live_workers(self) -> Mapping[str, frozenset[str]]: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of the caches that are to be cleared."""

    answers: bool
    prefixes: bool
    tiers: bool

    @property
    def of_workers(self) -> bool:
        return self.prefixes or self.tiers


def parts_of(request: admin_pb2.ClearCacheRequest) -> Parts:
    """Return what a request asks for: all that there is, unless it chooses (pure)."""
    if request.answers or request.prefixes or request.tiers:
        return Parts(request.answers, request.prefixes, request.tiers)
    return Parts(answers=not request.worker_id, prefixes=True, tiers=True)


def chosen(workers: Mapping[str, frozenset[str]], model: str, worker_id: str) -> list[str]:
    """The workers that a request is about (pure).

    Raises:
        InvalidArgument: the worker that it names does not serve the model.
    """
    if worker_id:
        if model and model not in workers.get(worker_id, {model}):
            raise InvalidArgument(f"worker {worker_id} does not serve {model!r}", field="worker_id")
        return [worker_id]
    return sorted(name for name, models in workers.items() if not model or model in models)


class CacheClearing:
    """Clears what is asked for, at the same time."""

    def __init__(self, scheduler: ClearsWorkers, workers: LiveWorkers, redis: Redis) -> None:
        self._scheduler = scheduler
        self._workers = workers
        self._redis = redis

    async def clear(self, request: admin_pb2.ClearCacheRequest) -> admin_pb2.ClearCacheResponse:
        """Clear, and say what was cleared and what could not be.

        Args:
            request: that passed `admin_limits.check_clear`.

        Raises:
            InvalidArgument: the worker that it names does not serve the model.
            NotFound: there is no such worker, or nothing of such a model.
            Unavailable: the one worker that was named cannot be asked.
        """
        parts = parts_of(request)
        ids: list[str] = []
        if parts.of_workers:
            ids = chosen(await self._workers.live_workers(), request.model, request.worker_id)
        response = admin_pb2.ClearCacheResponse()
        cleared, answers = await asyncio.gather(
            self._clear_workers(ids, request, parts), self._clear_answers(request, parts)
        )
        response.workers.extend(cleared)
        if answers is not None:
            response.answers.CopyFrom(answers)
        if request.model and not ids and not (answers and (answers.answers or answers.error)):
            raise NotFound(f"nothing is cached of a model {request.model[:200]!r}", reason="UNKNOWN_MODEL")
        return response

    async def _clear_workers(
        self, ids: Iterable[str], request: admin_pb2.ClearCacheRequest, parts: Parts
    ) -> list[scheduler_pb2.ClearedWorker]:
        scope = scope_of_tenant(request.tenant) if request.tenant else ""
        clear = scheduler_pb2.ClearCache(cache_scope=scope, prefixes=parts.prefixes, tiers=parts.tiers)
        places = asyncio.Semaphore(_WORKERS_AT_ONCE)

        async def clear_one(worker_id: str) -> scheduler_pb2.ClearedWorker | None:
            wanted = scheduler_pb2.ClearWorkerCache(worker_id=worker_id, clear=clear)
            try:
                async with places:
                    return await self._scheduler.clear_cache(wanted)
            except InferFluxError as error:
                if request.worker_id:
                    raise
                if isinstance(error, NotFound):  # it has gone meanwhile
                    return None
                return scheduler_pb2.ClearedWorker(worker_id=worker_id, error=error.message)

        found = await asyncio.gather(*map(clear_one, ids))
        return [each for each in found if each is not None]

    async def _clear_answers(
        self, request: admin_pb2.ClearCacheRequest, parts: Parts
    ) -> admin_pb2.ClearedAnswers | None:
        if not parts.answers:
            return None
        try:
            cleared = await answer_store.clear(self._redis, tenant=request.tenant, model=request.model)
        except store.FAILURES as error:
            return admin_pb2.ClearedAnswers(error=f"Redis does not answer: {error}")
        return admin_pb2.ClearedAnswers(answers=cleared.answers, bytes=cleared.n_bytes)
