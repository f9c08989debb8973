"""The limiter, as policy calls it: one script in Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from inferflux.common.contract.callers import rate_limits
from inferflux.common.contract.errors import ResourceExhausted
from inferflux.common.redis.store import WHOLE_SLOT
from inferflux.policy.decide.limits.rules import kind_subject, over_limit
from inferflux.v1 import policy_pb2

from .guarded import StoreGuard
from .together import Together

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from inferflux.policy.decide.limits.store import RateLimitStore

_SCRIPT = (Path(__file__).parent / "limiter.lua").read_text()
_PREFIX = "inferflux:{limits}:"
_KEYS = (_PREFIX, f"{_PREFIX}{WHOLE_SLOT}")
# Requests that one run of the script counts, or settles: Redis does nothing else meanwhile.
_AT_ONCE = 64

State = policy_pb2.RateLimitState
ClockMs = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Job:
    """A request that reserves, by what names it."""

    tenant: str
    request_id: str
    attempt_id: str

    @property
    def name(self) -> str:
        return f"{self.tenant}:{self.request_id}:{self.attempt_id}"


@dataclass(frozen=True, slots=True)
class Counted:
    """A request that was counted.

    Attributes:
        states: what is left of its limits.
        has_to_reserve: whether there are limits that `Limiter.reserve` looks at.
    """

    states: Sequence[State]
    has_to_reserve: bool


NOT_COUNTED = Counted((), has_to_reserve=True)


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation.

    Attributes:
        states: what is left of the limits it was reserved from.
        lease_ms: it is given back unless it is renewed within this time; 0: nothing was reserved.
    """

    states: Sequence[State]
    lease_ms: int


class Limiter:
    """Counts requests and tokens of subjects, and what runs at the same time.

    Every method is one round trip, atomic. It raises Unavailable when Redis or `rules` do not answer in time.

    Args:
        lease_s: how long a reservation lasts that is not renewed.
        remember_s: how long it is remembered what a job was charged.
        rules: the limits.
        clock_ms: the time in ms since 1970; None: that of Redis, which all policy processes share.
    """

    def __init__(
        self,
        redis: Redis,
        guard: StoreGuard,
        *,
        lease_s: float,
        remember_s: int,
        rules: RateLimitStore,
        clock_ms: ClockMs | None = None,
    ) -> None:
        self._redis = redis
        self._guard = guard
        self._script = redis.register_script(_SCRIPT)
        self._lease_ms = round(lease_s * 1000)
        self._remember_s = remember_s
        self._rules = rules
        self._clock_ms = clock_ms
        self._admits = Together(self._admit_all, most=_AT_ONCE)
        self._settles = Together(self._settle_all, most=_AT_ONCE)

    async def admit(self, subjects: Sequence[str]) -> Counted:
        """Count a request of each subject. Requests that come at the same time share a round trip; each is
        counted by itself, in the order in which they came.

        Raises:
            ResourceExhausted: one of them has used up a limit: then nothing is counted.
        """
        answer = await self._admits.answer(subjects)
        return Counted(_states(answer, asked_tokens=0), bool(answer["has_to_reserve"]))

    async def _admit_all(self, calls: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        given = await self._given_rules(subject for subjects in calls for subject in subjects)
        given["limits_models"] = await self._rules.limits_models()
        return cast("list[dict[str, Any]]", (await self._run("admit", calls=calls, **given))["answers"])

    async def reserve(self, job: Job, subjects: Sequence[str], *, model: str, tokens: int) -> Reserved:
        """Reserve tokens of each subject, and a place among its running requests. Doing it again changes
        nothing.

        Args:
            model: the one of the subjects whose requests are counted here.

        Raises:
            ResourceExhausted: it would be over a limit: then nothing is reserved.
        """
        answer = await self._run(
            "reserve",
            job=job.name,
            subjects=subjects,
            model=model,
            tokens=tokens,
            lease_ms=self._lease_ms,
            **await self._given_rules(subjects),
        )
        return Reserved(_states(answer, asked_tokens=tokens), int(answer["lease_ms"]))

    async def renew(self, jobs: Sequence[Job]) -> int:
        """Have reservations last longer; those that are not there are left out. Returns by how many ms."""
        await self._run("renew", jobs=[job.name for job in jobs], lease_ms=self._lease_ms)
        return self._lease_ms

    async def settle(
        self,
        job: Job,
        subjects: Sequence[str],
        *,
        tokens: int,
        is_void: bool = False,
        is_partial: bool = False,
    ) -> None:
        """Charge the tokens that a job used in the end, or so far, and end its reservation. What was charged
        before counts. Jobs that are settled at the same time share a round trip, in their order.

        Args:
            subjects: whose limits are charged where there is no reservation any more.
            is_void: there was no job: only end the reservation.
            is_partial: it may still run: leave the reservation, which covers the tokens.
        """
        used = {
            "job": job.name,
            "subjects": subjects,
            "tokens": tokens,
            "is_void": is_void,
            "is_partial": is_partial,
        }
        await self._settles.answer(used)

    async def _settle_all(self, jobs: Sequence[Mapping[str, Any]]) -> list[None]:
        given = await self._given_rules(subject for job in jobs for subject in job["subjects"])
        await self._run("settle", jobs=jobs, remember_s=self._remember_s, **given)
        return [None for _ in jobs]

    async def sweep(self) -> int:
        """Give back what was not renewed in time; how many reservations that were."""
        answer = await self._run("sweep", lease_ms=self._lease_ms, remember_s=self._remember_s)
        return int(answer["expired"])

    async def check(self) -> None:
        """Raises Unavailable when the Redis that has the counters does not answer."""
        async with self._guard.limit():
            await self._redis.exists(f"{_PREFIX}swept")

    async def usage(self, subject: str) -> list[policy_pb2.RateLimitUsage]:
        """Usage of each limit of a subject."""
        rows = (await self._run("usage", subject=subject, **await self._given_rules([subject])))["usage"]
        return [policy_pb2.RateLimitUsage(**row) for row in rows]

    async def _given_rules(self, subjects: Iterable[str]) -> dict[str, object]:
        """The limits of subjects and their kinds, for the script."""
        names = dict.fromkeys(name for subject in subjects for name in (subject, kind_subject(subject)))
        return {"rules": {rule.subject: dict(rule.limits) for rule in await self._rules.find_rules(names)}}

    async def _run(self, operation: str, **given: object) -> dict[str, Any]:
        now = "" if self._clock_ms is None else self._clock_ms()
        async with self._guard.limit():
            answer = await self._script(_KEYS, [operation, now, json.dumps(given)])
        return cast("dict[str, Any]", json.loads(answer))


def _states(answer: Mapping[str, Any], *, asked_tokens: int) -> Sequence[State]:
    """The limits that are left, where nothing was refused.

    Raises:
        ResourceExhausted: something was.
    """
    states = rate_limits.tightest(State(**row) for row in answer["states"])
    if refused := answer.get("refused"):
        error: ResourceExhausted = over_limit(refused, asked_tokens=asked_tokens)
        error.headers = rate_limits.headers_of(states)
        raise error
    return states
