"""The policies, by name (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal
from weakref import WeakKeyDictionary

from inferflux.scheduler.core.types.jobs import Job
from inferflux.scheduler.core.types.ranking import Ranking

from .queue_policy import QueuePolicy
from .running import Running
from .shared_priority import SharedPriority
from .shares import Floor, TenantShares
from .tenant_service import TenantService
from .urgent import UrgentFirst

PolicyName = Literal["priority", "fcfs", "sjf", "fair"]

# What computing a prompt token takes, in tokens generated: a prompt is computed many tokens at a time.
_PREFILL_COST = 0.1
# This many tokens still to be generated put a job back as far as one level of priority would.
_TOKENS_PER_LEVEL = 100
# A request without a bound is taken for a long one.
_MAX_TOKENS_UNSET = 4096


class Ranked(QueuePolicy):
    """A policy whose order never changes while jobs wait: lowest urgency key first, then arrival."""

    def __init__(self) -> None:
        self._ranking: Ranking[tuple[float, int, Job]] = Ranking()

    def __len__(self) -> int:
        return len(self._ranking)

    def __iter__(self) -> Iterator[Job]:
        return (entry[2] for entry in self._ranking)

    def urgency_key(self, job: Job) -> float:
        raise NotImplementedError

    def precedes(self, job: Job, running: Job) -> bool:
        return self.urgency_key(job) < self.urgency_key(running)

    def push(self, job: Job) -> None:
        job.order = (self.urgency_key(job), job.arrival)
        self._ranking.add((*job.order, job))

    def first(self) -> Job | None:
        return self._ranking.first()[2] if self._ranking else None

    def first_of(self, jobs: Sequence[Job]) -> Job:
        return min(jobs, key=lambda job: (self.urgency_key(job), job.arrival))

    def discard(self, job: Job) -> None:
        self._ranking.remove((*job.order, job))

    def position(self, job: Job) -> int:
        return self._ranking.position((*job.order, job))


class Priority(Ranked):
    """Highest effective priority first: priority + 1 per `aging_s` seconds of waiting.

    Every job ages at the same rate, so the order of two jobs never changes while they wait:
    priority + (now - since) / aging_s compares as since - priority * aging_s does.
    """

    def __init__(self, aging_s: float) -> None:
        super().__init__()
        self._aging_s = aging_s

    def urgency_key(self, job: Job) -> float:
        return job.since_s - job.priority * self._aging_s


class Fcfs(Ranked):
    """First come, first served; a retried job keeps its first arrival."""

    def urgency_key(self, job: Job) -> float:
        return job.since_s


class Sjf(Ranked):
    """Shortest job first, by the work still to do, whatever the priority.

    work = tokens to generate + 0.1 x tokens to prefill. How many will be generated is not known: it goes by
    the bound, max_tokens less those generated. What a parked job has computed already is not counted, nor
    what some worker has cached of the prompt.

    A job that has waited longer goes first if that outweighs the difference in work, `aging_s` seconds for
    100 tokens: key = since + work * aging_s / 100. So a job of n tokens is overtaken only by what comes in
    the n * aging_s / 100 seconds after it, and the order of two jobs never changes while they wait.
    """

    def __init__(self, aging_s: float) -> None:
        super().__init__()
        self._s_per_token = aging_s / _TOKENS_PER_LEVEL

    def urgency_key(self, job: Job) -> float:
        return job.since_s + work(job) * self._s_per_token


def work(job: Job) -> float:
    """Return the work that is left for a job, in tokens to generate."""
    computed = max(job.stay.seen_computed, job.most_cached)
    to_prefill = max(0, job.prompt_tokens + job.generated_tokens - computed)
    to_generate = max(0, (job.max_tokens or _MAX_TOKENS_UNSET) - job.known_tokens)
    return to_generate + _PREFILL_COST * to_prefill


class Fair(QueuePolicy):
    """The job of the tenant that has been served least, by weight, goes first; of those, the one with the
    highest effective priority.

    See `TenantShares`. Each operation costs O(log n) in the jobs and the tenants that wait.
    """

    def __init__(self, aging_s: float, shares: TenantShares) -> None:
        self._aging_s = aging_s
        self._by_priority = Priority(aging_s)
        self._shares = shares
        self._tenants: dict[str, Priority] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Job]:
        """Tenant by tenant."""
        for jobs in self._tenants.values():
            yield from jobs

    def urgency_key(self, job: Job) -> float:
        """Service that its tenant has had, so that workers go by the order in which places were given."""
        return self._shares.counter(job.key.tenant)

    def precedes(self, job: Job, running: Job) -> bool:
        """A tenant that was served less precedes one that was served more; within a tenant, and among equals,
        the higher effective priority does."""
        key, other = self.urgency_key(job), self.urgency_key(running)
        return key < other or (key == other and self._by_priority.precedes(job, running))

    def push(self, job: Job) -> None:
        self._take_in(job, is_lifted=True)

    def put_back(self, job: Job) -> None:
        self._take_in(job, is_lifted=False)

    def _take_in(self, job: Job, *, is_lifted: bool) -> None:
        tenant = job.key.tenant
        jobs = self._tenants.get(tenant)
        if jobs is None:
            jobs = self._tenants[tenant] = Priority(self._aging_s)
            self._shares.enter(tenant, is_lifted=is_lifted)
        jobs.push(job)
        self._size += 1

    def first(self) -> Job | None:
        tenant = self._shares.first()
        return None if tenant is None else self._tenants[tenant].first()

    def first_of(self, jobs: Sequence[Job]) -> Job:
        by_priority = self._by_priority.urgency_key
        return min(jobs, key=lambda job: (self.urgency_key(job), by_priority(job), job.arrival))

    def discard(self, job: Job) -> None:
        tenant = job.key.tenant
        jobs = self._tenants[tenant]
        jobs.discard(job)
        self._size -= 1
        if not jobs:
            del self._tenants[tenant]
            self._shares.leave(tenant)

    def position(self, job: Job) -> int:
        """Position as if all jobs cost the same and tenants were served in turn by weight from now on: those
        of its own tenant before it, as many of others as are served meanwhile, and one of each tenant served
        before it; never more than there are."""
        tenant = job.key.tenant
        own = self._tenants.get(tenant, Priority(self._aging_s))
        before = own.position(job)
        weight = self._shares.weight(tenant)
        of_others = self._shares.active_weight - (weight if own else 0.0)
        served_meanwhile = before * of_others / weight
        others = min(self._size - len(own), round(served_meanwhile) + self._shares.position(tenant))
        return before + others

    def charge(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        self._shares.charge(tenant, input_tokens, output_tokens)


def make_policy(
    name: PolicyName,
    *,
    aging_s: float,
    shares: TenantShares | None = None,
    running: Running | None = None,
    is_urgent: Callable[[Job], bool] | None = None,
) -> QueuePolicy:
    """A queue's policy.

    Args:
        name: which one.
        aging_s: seconds of waiting that are worth one level of priority.
        shares: the tenants' counters, for `fair` alone; equal shares when not given. One queue's own.
        running: running requests of the queue's model, for `priority` alone; nothing when not given.
        is_urgent: whether a job goes before all that are not, for `priority` alone.
    """
    match name:
        case "priority":
            running = Running() if running is None else running

            def new_order() -> SharedPriority:
                return SharedPriority(lambda: Priority(aging_s), running)

            return UrgentFirst(new_order(), new_order(), running, is_urgent or (lambda _job: False))
        case "fcfs":
            return Fcfs()
        case "sjf":
            return Sjf(aging_s)
        case "fair":
            return Fair(aging_s, TenantShares() if shares is None else shares)


class Orders:
    """Makes the orders of all models' queues, by one policy.

    Args:
        aging_s: seconds of waiting that are worth one level of priority.
        weights: shares of tenants under `fair`; 1 for one that is not in it.
        service: the service that each tenant has had.
        ordinary_share: of a model's slots, guaranteed to requests that are not urgent, under `priority`.
        is_urgent: whether a request goes before all that are not, under `priority`.
    """

    def __init__(
        self,
        name: PolicyName,
        *,
        aging_s: float,
        weights: Mapping[str, float],
        service: TenantService,
        ordinary_share: float,
        is_urgent: Callable[[Job], bool],
    ) -> None:
        self._name: PolicyName = name
        self._aging_s = aging_s
        self._weights = dict(weights)
        self._service = service
        self._ordinary_share = ordinary_share if name == "priority" else 0.0
        self._is_urgent = is_urgent
        self._floors: WeakKeyDictionary[Running, Floor] = WeakKeyDictionary()

    def new_policy(self, running: Running) -> QueuePolicy:
        """An empty order for a lane of the queue whose model has these running."""
        return make_policy(
            self._name,
            aging_s=self._aging_s,
            shares=TenantShares(self._weights, self._service, self._floors.setdefault(running, Floor())),
            running=running,
            is_urgent=self._is_urgent,
        )

    def new_running(self, slots: Callable[[], int]) -> Running:
        """Count of what runs of a model with these slots: of nothing yet."""
        return Running(ordinary_share=self._ordinary_share, is_urgent=self._is_urgent, slots=slots)
