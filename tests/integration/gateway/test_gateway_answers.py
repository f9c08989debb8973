"""A gateway with an answer cache: what it computes, what it does not, and what it does without Redis."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.gateway import (
    Backend,
    Client,
    GatewayProcess,
    StartGateway,
    finished,
    ids_of,
    text_of,
    tokens,
    until,
)
from harness.policy import PolicyProcess
from harness.servers import ServerProcess
from redis.asyncio import Redis

from inferflux.common.contract import errors
from inferflux.common.redis import store
from inferflux.gateway.answers.store import PREFIX
from inferflux.policy.storage.usage_store import UsageStore
from inferflux.v1 import generation_pb2, tokens_pb2

LENGTH = generation_pb2.FINISH_REASON_LENGTH
STOP = generation_pb2.FINISH_REASON_STOP


def greedy(max_tokens: int = 10, **fields: Any) -> generation_pb2.GenerationParams:
    sampling = generation_pb2.SamplingParams(temperature=0)
    return generation_pb2.GenerationParams(sampling=sampling, max_tokens=max_tokens, **fields)


def some_id() -> str:
    return uuid.uuid4().hex


class Cache:
    """A gateway with an answer cache in a Redis of the test's own, and one that plays its workers."""

    def __init__(self, gateway: GatewayProcess, client: Client, backend: Backend, redis: Redis) -> None:
        self.gateway, self.client, self.backend, self.redis = gateway, client, backend, redis
        # No other test asks this.
        self.text = some_id()

    async def metric(self, name: str) -> float:
        _, text = await self.gateway.get("/metrics")
        found = re.findall(rf"^inferflux_answer_cache_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return sum(float(value) for value in found)

    async def is_up(self, up: bool = True) -> None:
        async def is_so() -> bool:
            return bool(await self.metric("up")) is up

        await until(is_so)

    async def compute(
        self,
        params: generation_pb2.GenerationParams,
        *,
        n: int = 4,
        reason: generation_pb2.FinishReason.ValueType = STOP,
        client: Client | None = None,
        **fields: Any,
    ) -> list[tokens_pb2.TokenChunk]:
        """Have a worker answer with `n` tokens."""
        request_id = some_id()
        stream = (client or self.client).generate(request_id, **({"text": self.text} | fields), params=params)
        job = await self.backend.job(request_id)
        end = finished(n, reason=reason, attempt=job.attempt_id)
        await self.backend.say(job, *(tokens(i) for i in range(n)), end)
        await self.backend.done(request_id)
        chunks = await stream.rest()
        assert chunks[-1].finished.usage.cached_completion_tokens == 0
        return chunks

    async def keep(self, params: generation_pb2.GenerationParams, **how: Any) -> list[tokens_pb2.TokenChunk]:
        """The same, and wait until the answer is in Redis."""
        before = await self.redis.dbsize()
        chunks = await self.compute(params, **how)

        async def is_kept() -> bool:
            return await self.redis.dbsize() > before

        await until(is_kept)
        return chunks

    async def hit(
        self,
        params: generation_pb2.GenerationParams,
        *,
        request_id: str = "",
        client: Client | None = None,
        **fields: Any,
    ) -> list[tokens_pb2.TokenChunk]:
        """Ask for what is in the cache: no worker is asked."""
        request_id = request_id or some_id()
        asked = (client or self.client).generate(request_id, **({"text": self.text} | fields), params=params)
        chunks = await asked.rest()
        assert request_id not in self.backend.jobs
        usage = chunks[-1].finished.usage
        assert usage.cached_completion_tokens == usage.completion_tokens == len(ids_of(chunks))
        return chunks


@pytest.fixture
async def cache(
    start_gateway: StartGateway,
    nats_url: str,
    private_valkey: ServerProcess,
    backend: Backend,
    key: str,
) -> AsyncIterator[Cache]:
    gateway = await start_gateway(
        nats_url,
        INFERFLUX_REDIS_URL=private_valkey.url,
        INFERFLUX_GATEWAY_ANSWER_CACHE_BYTES=str(1 << 20),
        # Other tests may take the machine's time meanwhile.
        INFERFLUX_GATEWAY_ANSWER_CACHE_WAIT_S="1",
    )
    client = Client(gateway, key)
    redis = store.connect(private_valkey.url)
    made = Cache(gateway, client, backend, redis)
    await made.is_up()
    yield made
    await redis.aclose()


async def test_the_same_request_is_answered_without_a_worker(cache: Cache, valkey_url: str) -> None:
    computed = await cache.keep(greedy())
    request_id = some_id()
    answered = await cache.hit(greedy(), request_id=request_id)
    assert (ids_of(answered), text_of(answered)) == (ids_of(computed), text_of(computed))
    assert answered[0].HasField("started")
    assert answered[-1].finished.reason == STOP
    assert (await cache.metric("queries_total"), await cache.metric("hits_total")) == (2, 1)
    assert await cache.metric("tokens_total") == 4
    assert await cache.metric("bytes") > 500
    (line,) = cache.gateway.audit(request_id)
    assert (line["outcome"], line["completion_tokens"], line["cached_completion_tokens"]) == ("stop", 4, 4)
    redis = store.connect(valkey_url)

    async def is_settled() -> bool:
        usage = await UsageStore(redis, timeout_s=5).usage("acme")
        return usage.get("cached_completion_tokens", 0) >= 4

    await until(is_settled)
    await redis.aclose()


async def test_a_seeded_request_is_answered_again_and_an_unseeded_one_is_not(cache: Cache) -> None:
    seeded = generation_pb2.GenerationParams(sampling=generation_pb2.SamplingParams(seed=7))
    other = generation_pb2.GenerationParams(sampling=generation_pb2.SamplingParams(seed=8))
    drawn = generation_pb2.GenerationParams()
    await cache.keep(seeded)
    await cache.hit(seeded)
    await cache.compute(other)
    await cache.compute(drawn)
    await cache.compute(drawn)


async def test_a_longer_answer_serves_a_smaller_max_tokens(cache: Cache) -> None:
    await cache.keep(greedy(8), n=8, reason=LENGTH)
    shorter = await cache.hit(greedy(3))
    assert (ids_of(shorter), text_of(shorter)) == ([0, 1, 2], "0 1 2 ")
    assert shorter[-1].finished.reason == LENGTH
    assert ids_of(await cache.hit(greedy(8))) == list(range(8))
    longer = await cache.compute(greedy(9), n=9, reason=LENGTH)
    assert ids_of(longer) == list(range(9))


async def test_nothing_is_shared_with_another_tenant_but_with_the_tenants_other_keys(
    cache: Cache, other_key: str, policy: PolicyProcess, admin_key: str
) -> None:
    await cache.keep(greedy())
    await cache.compute(greedy(), client=Client(cache.gateway, other_key))
    second = await policy.create_key(admin_key)
    await cache.hit(greedy(), client=Client(cache.gateway, second.secret))


async def test_keys_of_one_cache_scope_share_over_tenants(
    cache: Cache, policy: PolicyProcess, admin_key: str
) -> None:
    first, second = [
        Client(cache.gateway, (await policy.create_key(admin_key, tenant=tenant, cache_scope="all")).secret)
        for tenant in ("acme", "other")
    ]
    await cache.keep(greedy(), client=first)
    await cache.hit(greedy(), client=second)


async def test_a_request_and_a_key_can_leave_the_cache_aside(
    cache: Cache, policy: PolicyProcess, admin_key: str
) -> None:
    skipping = await policy.create_key(admin_key, skip_answer_cache=True)
    await cache.compute(greedy(), client=Client(cache.gateway, skipping.secret))
    await cache.compute(greedy(), skip_answer_cache=True)
    await cache.keep(greedy())
    await cache.compute(greedy(), client=Client(cache.gateway, skipping.secret))
    await cache.compute(greedy(), skip_answer_cache=True)
    assert await cache.metric("queries_total") == 1


async def test_a_cancelled_or_failed_answer_is_not_kept(cache: Cache) -> None:
    await cache.compute(greedy(), reason=generation_pb2.FINISH_REASON_CANCELLED)
    request_id = some_id()
    stream = cache.client.generate(request_id, text=cache.text, params=greedy())
    job = await cache.backend.job(request_id)
    failed = tokens_pb2.Failed(code=13, reason="BAD_LOGITS", message="none")
    await cache.backend.say(job, tokens(0), tokens_pb2.TokenChunk(epoch=1, offset=1, failed=failed))
    await cache.backend.done(request_id)
    assert (await stream.error()).reason == "BAD_LOGITS"
    await cache.compute(greedy())


async def test_a_cached_stream_can_be_resumed_and_its_id_is_taken(cache: Cache) -> None:
    await cache.keep(greedy())
    request_id = some_id()
    await cache.hit(greedy(), request_id=request_id)
    rest = await cache.client.resume(request_id, 2).rest()
    assert (ids_of(rest), text_of(rest)) == ([2, 3], "2 3 ")
    assert rest[-1].finished.usage.cached_completion_tokens == 4
    error = await cache.client.generate(request_id, text=cache.text, params=greedy()).error()
    assert isinstance(error, errors.AlreadyExists)


async def test_a_corrupt_answer_is_computed_again(cache: Cache) -> None:
    await cache.keep(greedy())
    for stored in [k async for k in cache.redis.scan_iter(f"{PREFIX}answer:*")]:
        await cache.redis.setrange(stored, 20, b"spoiled")
    await cache.compute(greedy())
    assert await cache.metric("failures_total") == 1

    async def is_mended() -> bool:
        request_id = some_id()
        stream = cache.client.generate(request_id, text=cache.text, params=greedy())
        chunks = asyncio.create_task(stream.rest())
        await until(lambda: chunks.done() or request_id in cache.backend.jobs)
        if chunks.done():
            return (await chunks)[-1].finished.usage.cached_completion_tokens == 4
        stream.cancel()
        await asyncio.gather(chunks, return_exceptions=True)
        return False

    await until(is_mended)


async def test_accounts_of_other_types_are_begun_anew(cache: Cache) -> None:
    for name in ("entries", "used", "bytes"):
        await cache.redis.set(f"{PREFIX}{name}", "what is this")
    await cache.keep(greedy())
    await cache.hit(greedy())


async def test_without_redis_everything_is_computed_and_it_is_used_again_once_it_is_back(
    cache: Cache, private_valkey: ServerProcess
) -> None:
    await cache.keep(greedy())
    private_valkey.kill()
    await cache.compute(greedy())
    await cache.is_up(False)
    await cache.compute(greedy())
    private_valkey.start()
    private_valkey.wait_ready()
    await cache.is_up()
    cache.text = some_id()
    await cache.keep(greedy())
    await cache.hit(greedy())


async def test_a_redis_that_stops_answering_is_waited_for_once_and_briefly(
    cache: Cache, private_valkey: ServerProcess
) -> None:
    await cache.keep(greedy())
    private_valkey.pause()
    try:
        await cache.compute(greedy())
        await cache.is_up(False)
        before = await cache.metric("failures_total")
        for _ in range(5):
            await cache.compute(greedy())
        assert await cache.metric("failures_total") == before  # not asked any more
    finally:
        private_valkey.resume()
    await cache.is_up()
    await cache.hit(greedy())


async def test_a_gateway_without_redis_from_its_start_on_serves(
    start_gateway: StartGateway, nats_url: str, backend: Backend, key: str
) -> None:
    gateway = await start_gateway(
        nats_url, INFERFLUX_REDIS_URL="redis://127.0.0.1:1/0", INFERFLUX_GATEWAY_ANSWER_CACHE_BYTES="1000000"
    )
    client = Client(gateway, key)
    redis = store.connect("redis://127.0.0.1:1/0")
    await Cache(gateway, client, backend, redis).compute(greedy())
    await redis.aclose()
