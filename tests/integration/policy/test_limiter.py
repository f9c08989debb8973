"""The limiter in Redis does what a naive model does, in whatever order; and it is exact under concurrency."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pytest
import redis.asyncio
from harness.profiles import examples
from harness.servers import ServerProcess
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.common.contract.errors import ResourceExhausted
from inferflux.policy.decide.limits.rules import NAMES, RateLimit
from inferflux.policy.storage.guarded import StoreGuard
from inferflux.policy.storage.limiter import Job, Limiter

from .naive_limiter import WINDOWS, NaiveLimiter

LEASE_S = 15
START_MS = 1_760_000_000_123
KEYS = ("key:key_0000000000000001", "key:key_0000000000000002")
TENANT, MODELS = "tenant:acme", ("model:demo", "model:other")
SUBJECTS = (*KEYS, TENANT, *MODELS)


@pytest.fixture(scope="module")
def limits_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A valkey-server that is emptied between examples."""
    server = ServerProcess.valkey(tmp_path_factory.mktemp("limits-valkey"))
    server.start()
    server.wait_ready()
    yield server
    server.stop()


def limiter_of(
    client: redis.asyncio.Redis,
    clock: Clock | None = None,
    *,
    rules: Rules,
    lease_s: float = LEASE_S,
) -> Limiter:
    guard = StoreGuard(timeout_s=10)
    return Limiter(client, guard, lease_s=lease_s, remember_s=3600, rules=rules, clock_ms=clock)


class Rules:
    """A `RateLimitStore` in memory."""

    def __init__(self, *given: RateLimit) -> None:
        self._rules = {rule.subject: rule for rule in given}

    async def rules(self) -> list[RateLimit]:
        return sorted(self._rules.values(), key=lambda rule: rule.subject)

    async def find_rules(self, subjects: Collection[str]) -> list[RateLimit]:
        return [self._rules[subject] for subject in subjects if subject in self._rules]

    async def limits_models(self) -> bool:
        return any(subject.startswith("model:") for subject in self._rules)

    async def set_rule(self, rule: RateLimit) -> RateLimit:
        self._rules[rule.subject] = rule
        return rule

    async def delete_rule(self, subject: str, *, version: int = 0) -> bool:  # noqa: ARG002
        return self._rules.pop(subject, None) is not None


class Clock:
    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


limits = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 30), min_size=1)
subjects_of_a_call = st.tuples(st.sampled_from(KEYS), st.just(TENANT), st.sampled_from(MODELS))
jobs = st.integers(0, 5).map(lambda i: Job("acme", f"r{i}", "a"))
steps = st.one_of(
    st.tuples(st.just("rule"), st.sampled_from((*SUBJECTS, "key:*", "tenant:*", "model:*")), limits),
    st.tuples(st.just("no rule"), st.sampled_from((*SUBJECTS, "tenant:*"))),
    st.tuples(st.just("admit"), subjects_of_a_call),
    st.tuples(st.just("admit at once"), st.lists(subjects_of_a_call, min_size=2, max_size=8)),
    st.tuples(st.just("reserve"), jobs, subjects_of_a_call, st.integers(0, 20)),
    st.tuples(
        st.just("settle"),
        jobs,
        subjects_of_a_call,
        st.integers(0, 25),
        st.sampled_from(("final", "partial", "void")),
    ),
    st.tuples(st.just("renew"), st.lists(jobs, max_size=3)),
    st.tuples(st.just("sweep")),
    st.tuples(
        st.just("wait"), st.sampled_from((1, 400, 1000, 7000, 15_000, 59_000, 61_000, 3_600_000, 86_400_000))
    ),
)


class Both:
    """The limiter and the model, told the same."""

    def __init__(self, limiter: Limiter, rules: Rules, clock: Clock) -> None:
        self.limiter, self.rules, self.clock = limiter, rules, clock
        self.model = NaiveLimiter(LEASE_S * 1000)

    async def do(self, step: tuple[object, ...]) -> None:
        await getattr(self, f"_{str(step[0]).replace(' ', '_')}")(*step[1:])
        for subject in SUBJECTS:
            await self._compare_usage(subject)

    async def _compare_usage(self, subject: str) -> None:
        told = {u.name: u.used for u in await self.limiter.usage(subject)}
        for name, used in told.items():
            if name in WINDOWS:
                assert used == self.model.used(subject, name, self.clock.now_ms), (subject, name)
            else:
                assert used == self.model.running(subject), subject

    async def _rule(self, subject: str, limits: dict[str, int]) -> None:
        await self.rules.set_rule(RateLimit(subject, limits))
        self.model.rules[subject] = limits

    async def _no_rule(self, subject: str) -> None:
        assert await self.rules.delete_rule(subject) == (self.model.rules.pop(subject, None) is not None)

    async def _admit(self, subjects: tuple[str, ...]) -> None:
        refused = await wait_of(self.limiter.admit(subjects[:2]))
        assert refused == self.model.admit(subjects[:2], self.clock.now_ms)

    async def _admit_at_once(self, calls: list[tuple[str, ...]]) -> None:
        refused = await asyncio.gather(*(wait_of(self.limiter.admit(subjects[:2])) for subjects in calls))
        assert refused == [self.model.admit(subjects[:2], self.clock.now_ms) for subjects in calls]

    async def _reserve(self, job: Job, subjects: tuple[str, ...], tokens: int) -> None:
        refused = await wait_of(self.limiter.reserve(job, subjects, model=subjects[2], tokens=tokens))
        assert refused == self.model.reserve(job.name, subjects, subjects[2], tokens, self.clock.now_ms)

    async def _settle(self, job: Job, subjects: tuple[str, ...], tokens: int, kind: str) -> None:
        is_void, is_partial = kind == "void", kind == "partial"
        await self.limiter.settle(job, subjects, tokens=tokens, is_void=is_void, is_partial=is_partial)
        self.model.settle(job.name, subjects, tokens, kind, self.clock.now_ms)

    async def _renew(self, jobs: list[Job]) -> None:
        await self.limiter.renew(jobs)
        self.model.renew([job.name for job in jobs], self.clock.now_ms)

    async def _sweep(self) -> None:
        assert await self.limiter.sweep() == self.model.sweep(self.clock.now_ms)

    async def _wait(self, ms: int) -> None:
        self.clock.now_ms += ms


async def wait_of(call: object) -> int | None:
    """The wait in ms that a refusal asks for, -1 for ever; None if it was none."""
    try:
        await call  # type: ignore[misc]
    except ResourceExhausted as error:
        return -1 if error.retry_delay_s is None else round(error.retry_delay_s * 1000)
    return None


@settings(max_examples=examples(60), deadline=None)
@given(steps=st.lists(steps, max_size=25))
def test_it_does_what_the_naive_model_does(
    limits_valkey: ServerProcess, steps: list[tuple[object, ...]]
) -> None:
    async def play() -> None:
        async with redis.asyncio.Redis.from_url(limits_valkey.url) as client:
            await client.flushdb()
            clock = Clock()
            rules = Rules()
            both = Both(limiter_of(client, clock, rules=rules), rules, clock)
            await both.do(("rule", TENANT, {"tokens_per_minute": 30, "concurrent_requests": 3}))
            for step in steps:
                await both.do(step)

    asyncio.run(play())


async def test_no_interval_of_a_minute_has_more_than_the_limit(limits_valkey: ServerProcess) -> None:
    async with redis.asyncio.Redis.from_url(limits_valkey.url) as client:
        await client.flushdb()
        clock = Clock()
        limiter = limiter_of(client, clock, rules=Rules(RateLimit(TENANT, {"requests_per_minute": 5})))
        admitted: list[int] = []
        for _ in range(600):
            clock.now_ms += 317
            if await wait_of(limiter.admit([TENANT])) is None:
                admitted.append(clock.now_ms)
    assert len(admitted) >= 5 * (600 * 317 // 61_000)
    for start in admitted:
        assert sum(start <= at < start + 60_000 for at in admitted) <= 5


async def test_waiting_as_long_as_told_is_enough_and_not_too_long(limits_valkey: ServerProcess) -> None:
    async with redis.asyncio.Redis.from_url(limits_valkey.url) as client:
        await client.flushdb()
        clock = Clock()
        limiter = limiter_of(client, clock, rules=Rules(RateLimit(TENANT, {"requests_per_minute": 3})))
        for _ in range(3):
            await limiter.admit([TENANT])
            clock.now_ms += 5000
        wait = await wait_of(limiter.admit([TENANT]))
        assert wait is not None
        clock.now_ms += wait - 1
        assert await wait_of(limiter.admit([TENANT])) == 1
        clock.now_ms += 1
        assert await wait_of(limiter.admit([TENANT])) is None


async def test_what_is_settled_while_a_job_may_run_is_kept_when_its_lease_ends(
    limits_valkey: ServerProcess,
) -> None:
    async with redis.asyncio.Redis.from_url(limits_valkey.url) as client:
        await client.flushdb()
        clock = Clock()
        limiter = limiter_of(
            client, clock, rules=Rules(RateLimit(TENANT, {"tokens_per_day": 100, "concurrent_requests": 1}))
        )
        job = Job("acme", "r1", "a")
        await limiter.sweep()
        await limiter.reserve(job, [TENANT], model="model:demo", tokens=50)
        await limiter.settle(job, [TENANT], tokens=9, is_partial=True)
        assert await used_by(limiter) == {"tokens_per_day": 50, "concurrent_requests": 1}
        clock.now_ms += LEASE_S * 1000 // 3
        await limiter.sweep()
        clock.now_ms += LEASE_S * 1000 // 3
        await limiter.sweep()
        clock.now_ms += LEASE_S * 1000 // 3
        assert await limiter.sweep() == 1
        assert await used_by(limiter) == {"tokens_per_day": 9, "concurrent_requests": 0}
        await limiter.settle(job, [TENANT], tokens=12)
        assert await used_by(limiter) == {"tokens_per_day": 12, "concurrent_requests": 0}


async def used_by(limiter: Limiter) -> dict[str, int]:
    return {usage.name: usage.used for usage in await limiter.usage(TENANT)}


async def test_a_clock_that_is_set_back_frees_nothing(limits_valkey: ServerProcess) -> None:
    async with redis.asyncio.Redis.from_url(limits_valkey.url) as client:
        await client.flushdb()
        clock = Clock()
        limiter = limiter_of(client, clock, rules=Rules(RateLimit(TENANT, {"requests_per_minute": 2})))
        await limiter.admit([TENANT])
        clock.now_ms -= 3_600_000
        await limiter.admit([TENANT])
        assert await wait_of(limiter.admit([TENANT])) is not None
        clock.now_ms += 3_600_000 + 61_000
        assert await wait_of(limiter.admit([TENANT])) is None


async def test_a_clock_that_is_set_back_keeps_no_place_of_the_dead(limits_valkey: ServerProcess) -> None:
    async with redis.asyncio.Redis.from_url(limits_valkey.url) as client:
        await client.flushdb()
        clock = Clock()
        limiter = limiter_of(client, clock, rules=Rules(RateLimit(TENANT, {"concurrent_requests": 1})))
        await limiter.sweep()
        await limiter.reserve(Job("acme", "r1", "a"), [TENANT], model="model:demo", tokens=1)
        clock.now_ms -= 3_600_000
        assert await limiter.sweep() == 0
        for _ in range(3):
            assert await used_by(limiter) == {"concurrent_requests": 1}
            clock.now_ms += LEASE_S * 1000 // 3
            n_expired = await limiter.sweep()
        assert n_expired == 1
        assert await used_by(limiter) == {"concurrent_requests": 0}


async def test_what_is_left_is_told_with_a_refusal_too(limits_valkey: ServerProcess) -> None:
    async with redis.asyncio.Redis.from_url(limits_valkey.url) as client:
        await client.flushdb()
        limiter = limiter_of(
            client,
            Clock(),
            rules=Rules(RateLimit(TENANT, {"requests_per_minute": 1, "tokens_per_minute": 9})),
        )
        (requests, tokens) = (await limiter.admit([TENANT])).states
        assert (requests.name, requests.limit, requests.remaining) == ("requests", 1, 0)
        assert (tokens.name, tokens.limit, tokens.remaining) == ("tokens", 9, 9)
        with pytest.raises(ResourceExhausted) as caught:
            await limiter.admit([TENANT])
        assert caught.value.headers["x-ratelimit-remaining-requests"] == "0"
        assert caught.value.headers["x-ratelimit-limit-tokens"] == "9"


async def test_fifty_at_once_never_get_over_a_limit_and_leave_nothing(limits_valkey: ServerProcess) -> None:
    """Each of them reserves, runs and settles, again and again; some never settle, as their gateway dies."""
    limit = {"concurrent_requests": 7, "tokens_per_minute": 5000, "requests_per_minute": 1000}
    async with redis.asyncio.Redis.from_url(limits_valkey.url, max_connections=80) as client:
        await client.flushdb()
        rules = Rules(RateLimit(TENANT, limit))
        limiters = [limiter_of(client, lease_s=1, rules=rules) for _ in range(5)]
        now = asyncio.get_running_loop().time
        end, seen = now() + 10, Seen()
        sweeping = asyncio.create_task(sweep_on(limiters[0]))
        callers = (call_until(end, limiters[i % 5], seen, limit, name=f"c{i}") for i in range(50))
        await asyncio.gather(*callers)
        assert 0 < seen.most_running <= limit["concurrent_requests"]
        assert seen.dead > 0
        await until_all_given_back(limiters[0])
        sweeping.cancel()
        used = {usage.name: usage.used for usage in await limiters[0].usage(TENANT)}
        assert used["tokens_per_minute"] == seen.used
        assert used["requests_per_minute"] == seen.admitted
        assert [name async for name in client.scan_iter("inferflux:{limits}:running:*")] == []
        assert await client.zcard("inferflux:{limits}:leases") == 0


@dataclass
class Seen:
    """What the callers see together."""

    admitted: int = 0
    used: int = 0
    reserved: int = 0
    running: int = 0
    most_running: int = 0
    dead: int = 0


async def call_until(
    end: float, limiter: Limiter, seen: Seen, limit: Mapping[str, int], *, name: str
) -> None:
    now = asyncio.get_running_loop().time
    for i in itertools.count():
        if now() >= end:
            return
        job = Job("acme", f"{name}-{i}", "a")
        try:
            await limiter.admit([TENANT])
            seen.admitted += 1
            await limiter.reserve(job, [TENANT], model="model:demo", tokens=50)
        except ResourceExhausted:
            await asyncio.sleep(0.02)
            continue
        seen.running += 1
        seen.reserved += 50
        seen.most_running = max(seen.most_running, seen.running)
        assert seen.used + seen.reserved <= limit["tokens_per_minute"]
        assert seen.admitted <= limit["requests_per_minute"]
        await asyncio.sleep(0.002)
        seen.running -= 1
        seen.reserved -= 50
        if i % 5 == 0 and name.endswith("0"):
            seen.dead += 1
            continue
        seen.used += 9
        await limiter.settle(job, [TENANT], tokens=9)


async def sweep_on(limiter: Limiter) -> None:
    """As a policy process does it."""
    while True:
        await limiter.sweep()
        await asyncio.sleep(0.2)


async def until_all_given_back(limiter: Limiter) -> None:
    async with asyncio.timeout(20):
        while {usage.name: usage.used for usage in await limiter.usage(TENANT)}["concurrent_requests"]:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], False),
        ([RateLimit(TENANT, {"requests_per_minute": 9})], False),
        ([RateLimit("tenant:another", {"tokens_per_day": 9})], False),
        ([RateLimit(TENANT, {"tokens_per_minute": 9})], True),
        ([RateLimit("tenant:*", {"tokens_per_day": 9})], True),
        ([RateLimit(TENANT, {"concurrent_requests": 9})], True),
        ([RateLimit("model:large", {"requests_per_minute": 9})], True),
        ([RateLimit("model:*", {"requests_per_day": 9})], True),
    ],
)
async def test_a_request_is_reserved_where_a_limit_may_look_at_it(
    limits_valkey: ServerProcess, rules: list[RateLimit], expected: bool
) -> None:
    async with redis.asyncio.Redis.from_url(limits_valkey.url) as client:
        await client.flushdb()
        limiter = limiter_of(client, Clock(), rules=Rules(*rules))
        assert (await limiter.admit([TENANT])).has_to_reserve is expected
