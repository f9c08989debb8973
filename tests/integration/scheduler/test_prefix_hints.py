"""Which worker gets a request whose prefix another one has cached, and what Redis can do to that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import pytest
from harness.policy import until
from harness.scheduler_stage import Stage
from harness.scripted_worker import DIGEST, MODEL
from harness.servers import ServerProcess
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from inferflux.common.prefixes.hashes import PrefixHasher, packed
from inferflux.common.prefixes.index import CachedBlock, Change, Holder, PrefixIndex, Tier
from inferflux.common.prefixes.salt import SharedSalt
from inferflux.common.redis import store
from inferflux.scheduler.core.workers.slots import WorkerSlots
from inferflux.scheduler.edge.prefix_hints import PrefixHints
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.v1 import scheduler_pb2

PROMPT = list(range(100))
# Longer than any pause of a busy machine, and shorter than a test waits.
PATIENT_S = 5.0


@pytest.fixture
async def redis(private_valkey: ServerProcess) -> AsyncIterator[Redis]:
    client = store.connect(private_valkey.url)
    yield client
    await client.aclose()


def request_of(prompt: list[int], *, tenant: str = "acme", scope: str = "") -> scheduler_pb2.InferenceRequest:
    return scheduler_pb2.InferenceRequest(
        request_id="r", tenant=tenant, model=MODEL, prompt_token_ids=prompt, cache_scope=scope
    )


def worker_of(worker_id: str, digest: str = DIGEST) -> WorkerSlots:
    status = scheduler_pb2.WorkerStatus(worker_id=worker_id, incarnation=f"{worker_id}-1", slots=1)
    status.models.add(name=MODEL, digest=digest, context_length=512)
    return WorkerSlots(status, 0.0)


async def cache(
    redis: Redis,
    holder: Holder,
    prompt: list[int],
    *,
    scope: str = "tenant/acme",
    digest: str = DIGEST,
    usable: int = 1000,
) -> None:
    """A worker has cached a prompt, of which requests can begin with `usable` blocks at most."""
    salt = SharedSalt(redis)
    await salt.refresh()
    hashes = PrefixHasher(salt.value, model_digest=digest).of(packed(prompt), scope)
    blocks = [CachedBlock(each, Tier.DEVICE, 1, min(n, usable)) for n, each in enumerate(hashes, 1)]
    await PrefixIndex(redis).write(holder, [Change(None, 1, added=blocks)])


class Asking:
    """A leader's hints."""

    def __init__(self, redis: Redis, *workers: WorkerSlots, limit_s: float = PATIENT_S) -> None:
        self.registry = CollectorRegistry()
        self.is_wanted: Callable[[scheduler_pb2.InferenceRequest], bool] = lambda _request: True
        self.hints = PrefixHints(
            redis,
            lambda _model: workers,
            SchedulerMetrics(self.registry),
            is_wanted=lambda request: self.is_wanted(request),
            limit_s=limit_s,
        )

    def count(self, outcome: str) -> float:
        name = "inferflux_prefix_index_lookups_total"
        return self.registry.get_sample_value(name, {"outcome": outcome}) or 0.0

    async def of(self, *prompts: list[int]) -> list[dict[str, int]]:
        return [dict(each) for each in await self.hints.look_up([request_of(p) for p in prompts])]

    async def until_found(self, expected: dict[str, int], prompt: list[int] = PROMPT) -> None:
        async def is_found() -> bool:
            return await self.of(prompt) == [expected]

        await until(is_found)

    @contextmanager
    def keeping_up(self) -> Iterator[None]:
        task = asyncio.create_task(self.hints.keep_up())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()


async def test_hints_say_how_much_each_worker_has_cached(redis: Redis) -> None:
    await cache(redis, Holder("w1", "w1-1"), PROMPT)
    await cache(redis, Holder("w2", "w2-1"), PROMPT[:40])
    await cache(redis, Holder("w3", "an earlier life"), PROMPT)
    asking = Asking(redis, *map(worker_of, ("w1", "w2", "w3")))
    with asking.keeping_up():
        await asking.until_found({"w1": 96, "w2": 32})
        assert await asking.of(PROMPT[:50] + [7] * 50, [7] * 100, [1]) == [{"w1": 48, "w2": 32}, {}, {}]
    assert asking.count("hit") == 2
    assert asking.count("miss") == 1  # one token has no block to look up


async def test_hints_say_what_a_request_can_begin_with(redis: Redis) -> None:
    await cache(redis, Holder("w1", "w1-1"), PROMPT, usable=2)
    await cache(redis, Holder("w2", "w2-1"), PROMPT, usable=0)
    await cache(redis, Holder("w3", "w3-1"), PROMPT[:64])
    asking = Asking(redis, *map(worker_of, ("w1", "w2", "w3")))
    with asking.keeping_up():
        await asking.until_found({"w1": 32, "w3": 64})
        assert await asking.of(PROMPT[:20]) == [{"w1": 16, "w3": 16}]


async def test_a_tenant_gets_no_hint_of_anothers_prompts_unless_they_share_a_scope(redis: Redis) -> None:
    await cache(redis, Holder("w1", "w1-1"), PROMPT)
    await cache(redis, Holder("w2", "w2-1"), PROMPT, scope="scope/catalogue")
    asking = Asking(redis, worker_of("w1"), worker_of("w2"))
    with asking.keeping_up():
        await asking.until_found({"w1": 96})
        requests = [
            request_of(PROMPT, tenant="globex"),
            request_of(PROMPT, tenant="globex", scope="catalogue"),
            request_of(PROMPT, scope="catalogue"),
        ]
        assert await asking.hints.look_up(requests) == [{}, {"w2": 96}, {"w2": 96}]


async def test_a_worker_that_serves_another_file_under_the_name_has_prefixes_of_its_own(redis: Redis) -> None:
    await cache(redis, Holder("w1", "w1-1"), PROMPT)
    await cache(redis, Holder("w2", "w2-1"), PROMPT[:40], digest="e" * 64)
    asking = Asking(redis, worker_of("w1"), worker_of("w2", "e" * 64))
    with asking.keeping_up():
        await asking.until_found({"w1": 96, "w2": 32})


async def test_a_redis_that_does_not_answer_costs_one_bounded_wait(
    redis: Redis, private_valkey: ServerProcess
) -> None:
    await cache(redis, Holder("w1", "w1-1"), PROMPT)
    asking = Asking(redis, worker_of("w1"), limit_s=0.5)
    with asking.keeping_up():
        await asking.until_found({"w1": 96})
        private_valkey.pause()
        assert await asking.of(PROMPT) == [{}]
        assert asking.count("late") == 1
        began_s = time.monotonic()
        for _ in range(20):
            assert await asking.of(PROMPT) == [{}]
        assert time.monotonic() - began_s < 20 * 0.5
        assert asking.count("skipped") > 10  # but for those that found the late one abandoned
        private_valkey.resume()
        await asking.until_found({"w1": 96})


async def test_only_prompts_that_would_be_looked_up_count_as_skipped(redis: Redis) -> None:
    asking = Asking(redis, worker_of("w1"))  # which has not met Redis
    unwanted = request_of(PROMPT, tenant="unwanted")
    asking.is_wanted = lambda request: request is not unwanted
    await asking.hints.look_up([unwanted, request_of([1] * 15), request_of(PROMPT)])
    assert asking.count("skipped") == 1


async def test_tokens_that_were_generated_before_are_looked_up_with_their_prompt(redis: Redis) -> None:
    await cache(redis, Holder("w1", "w1-1"), PROMPT)
    request = request_of(PROMPT[:40])
    request.generated_token_ids.extend(PROMPT[40:])
    asking = Asking(redis, worker_of("w1"))
    with asking.keeping_up():
        await asking.until_found({"w1": 96})
        assert await asking.hints.look_up([request]) == [{"w1": 96}]


async def test_hints_are_back_by_themselves_after_redis_died(
    redis: Redis, private_valkey: ServerProcess
) -> None:
    await cache(redis, Holder("w1", "w1-1"), PROMPT)
    asking = Asking(redis, worker_of("w1"))
    with asking.keeping_up():
        await asking.until_found({"w1": 96})
        private_valkey.kill()
        assert await asking.of(PROMPT) == [{}]
        assert asking.count("failed") == 1
        private_valkey.start()
        private_valkey.wait_ready()
        await cache(redis, Holder("w1", "w1-1"), PROMPT)
        await asking.until_found({"w1": 96})


async def test_another_salt_is_followed(redis: Redis) -> None:
    asking = Asking(redis, worker_of("w1"))
    with asking.keeping_up():
        await cache(redis, Holder("w1", "w1-1"), PROMPT)
        await asking.until_found({"w1": 96})
        await redis.set("inferflux:{prefixes}:salt", bytes(32))
        await cache(redis, Holder("w1", "w1-1"), PROMPT[:40])
        await asking.until_found({"w1": 32})


async def test_the_second_turn_of_a_conversation_goes_to_the_worker_that_has_the_first(
    theatre: Stage, private_valkey: ServerProcess, redis: Redis
) -> None:
    """Whichever that is; and after Redis is gone requests go on without."""
    theatre.env |= {
        "INFERFLUX_REDIS_URL": private_valkey.url,
        "INFERFLUX_SCHEDULER_PREFIX_LOOKUP_LIMIT_S": "1",
    }
    workers = [await theatre.add_worker("w1", slots=8), await theatre.add_worker("w2", slots=8)]
    leader = await theatre.add_scheduler("s1")

    async def has_hits(number: int) -> bool:
        _, text = await leader.get("/metrics")
        return f'inferflux_prefix_index_lookups_total{{outcome="hit"}} {float(number)}' in text

    async def has_met_redis() -> bool:
        return bool(await redis.exists("inferflux:{prefixes}:salt"))

    await until(has_met_redis)
    for number in range(6):
        prompt = [number] * 100
        worker = workers[number % 2]
        await cache(redis, Holder(worker.worker_id, worker.incarnation), prompt)
        await theatre.submit(f"turn-{number}", prompt=[*prompt, 1, 2, 3])
        await worker.has(f"turn-{number}")
        await worker.emit(f"turn-{number}", 1, is_last=True)
        assert (await theatre.read(f"turn-{number}")).outcome == "stop"
    await until(lambda: has_hits(6))
    private_valkey.kill()
    await theatre.submit("without", prompt=[5] * 100)

    async def is_taken() -> bool:
        return any("without" in worker.items for worker in workers)

    await until(is_taken)
