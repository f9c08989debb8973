"""The answer cache, as the pipeline uses it: answers are a saving, and Redis is never waited for long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferflux.common.prefixes.salt import SharedSalt
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background
from inferflux.common.redis import store
from inferflux.v1 import answers_pb2, generation_pb2, scheduler_pb2

from . import key as keys
from .metrics import AnswerMetrics
from .record import Recorder, cut, seal, unseal
from .store import AnswerLimits, AnswerStore

if TYPE_CHECKING:
    from redis.asyncio import Redis

_CHECK_INTERVAL_S = 1.0
_CONNECT_LIMIT_S = 1.0
_KEEP_LIMIT_S = 1.0

log = logs.get()


@dataclass(frozen=True, slots=True)
class Query:
    """A request that may be answered from the cache, and whose answer may be kept there.

    Attributes:
        model: its name.
        key: all that decides the answer.
        max_tokens: as many of it are wanted.
    """

    tenant: str
    model: str
    key: bytes
    max_tokens: int
    recorder: Recorder


def query_of(
    job: scheduler_pb2.InferenceRequest,
    asked: generation_pb2.GenerationParams,
    *,
    model_digest: str,
) -> Query | None:
    """The query of a request; None when every answer to it is another.

    Args:
        asked: the params as the caller sent them.
    """
    if not keys.is_repeatable(asked):
        return None
    key = keys.key_of(job, model_digest=model_digest, is_seeded=asked.sampling.HasField("seed"))
    return Query(job.tenant, job.model, key, job.params.max_tokens, Recorder())


class AnswerCache:
    """Never raises, and never delays a request by more than `wait_s`.

    When Redis fails, it is not asked again until `run` finds that it answers in time.

    Args:
        wait_s: longest wait for a look-up, in seconds.
    """

    def __init__(
        self,
        redis: Redis,
        limits: AnswerLimits,
        background: Background,
        metrics: AnswerMetrics,
        *,
        wait_s: float,
    ) -> None:
        self._store = AnswerStore(redis, limits)
        self._salt = SharedSalt(redis)
        self._background = background
        self._metrics = metrics
        self._wait_s = wait_s
        self._is_up = False

    async def run(self) -> None:
        """Watch over Redis, and agree on the salt, for ever."""
        while True:
            try:
                await self._check()
            except store.FAILURES as error:
                self._note(is_up=False, why=str(error))
            else:
                self._note(is_up=True)
            await asyncio.sleep(_CHECK_INTERVAL_S)

    async def _check(self) -> None:
        if not self._is_up:  # it has to be connected to first
            async with asyncio.timeout(_CONNECT_LIMIT_S):
                await self._salt.refresh()
        async with asyncio.timeout(self._wait_s):
            await self._salt.refresh()

    async def find(self, query: Query) -> answers_pb2.CachedAnswer | None:
        """The answer as the request would get it from a worker; None if it has to be computed."""
        self._metrics.queries.labels(query.model).inc()
        if not self._is_up:
            return None
        salt = self._salt.value
        name = keys.name_of(query.key, salt)
        try:
            async with asyncio.timeout(self._wait_s):
                sealed = await self._store.find(name)
        except store.FAILURES as error:
            self._metrics.failures.labels("away").inc()
            self._note(is_up=False, why=str(error))
            return None
        if sealed is None:
            return None
        answer = unseal(sealed, name, salt)
        if answer is None:
            self._metrics.failures.labels("corrupt").inc()
            return None
        wanted = cut(answer, query.max_tokens)
        if wanted is not None:
            self._metrics.hits.labels(query.model).inc()
            self._metrics.tokens.labels(query.model).inc(sum(len(c.token_ids) for c in wanted.chunks))
        return wanted

    def keep(self, query: Query) -> None:
        """The request has ended: keep its answer, in the background, if it is whole."""
        data = query.recorder.answer()
        if data is not None and self._is_up and self._store.has_room_for(len(data)):
            self._background.start(self._keep(query, data))

    async def _keep(self, query: Query, data: bytes) -> None:
        salt = self._salt.value
        name = keys.name_of(query.key, salt)
        try:
            async with asyncio.timeout(_KEEP_LIMIT_S):
                sealed = seal(data, name, salt)
                kept = await self._store.keep(name, sealed, tenant=query.tenant, model=query.model)
        except store.FAILURES as error:
            self._metrics.failures.labels("away").inc()
            log.debug("an answer was not kept", why=str(error))
            return
        self._metrics.bytes.set(kept.total_bytes)
        self._metrics.evictions.inc(kept.evicted)

    def _note(self, *, is_up: bool, why: str = "") -> None:
        self._metrics.up.set(is_up)
        if is_up == self._is_up:
            return
        self._is_up = is_up
        if is_up:
            log.info("the answer cache is used")
        else:
            log.warning("the answer cache is not used: Redis does not answer in time", why=why)
