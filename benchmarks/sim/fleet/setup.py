"""How large a fleet is, what its workers serve, and what happens to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from random import Random

from benchmarks.sim.worker import WorkerModel
from benchmarks.sim.world import START_S
from inferflux.common.contract.partitions import Partition, divide, shard_of
from inferflux.scheduler.core.order.queue_policies import PolicyName

# One leaves, two are killed, and one is in the zone that is lost.
LEAST_SCHEDULERS = 4

# Of model popularity by rank: the first of 200 models has five times what the last has.
_SKEW = 0.3


@dataclass(frozen=True)
class Fleet:
    """The parts of a fleet, and for how long requests come: `seconds` of simulated time.

    Raises:
        ValueError: there are too few schedulers, or workers for the models.
    """

    workers: int = 10_000
    models: int = 200
    schedulers: int = 10
    partitions: int = 10
    zones: tuple[str, ...] = ("north", "east", "west")
    small_tenants: int = 200
    policy: PolicyName = "priority"
    seconds: float = 60.0
    seed: int = 1
    # How long a lease stands that is not renewed.
    lease_s: float = 1.5
    is_preempting: bool = True
    # Whether leaders tell each other what they have served.
    are_shares_exchanged: bool = True
    worker: WorkerModel = field(
        default_factory=lambda: WorkerModel(slots=2, sequences=4, kv_cells=8192, swap_cells=16_384)
    )
    # Parts of the workers that leave in order, and that die, in each second. Others come in their place.
    leaves_per_s: float = 0.001
    deaths_per_s: float = 0.0005

    def __post_init__(self) -> None:
        if self.schedulers < LEAST_SCHEDULERS:
            raise ValueError(f"{self.schedulers} schedulers are too few: {LEAST_SCHEDULERS} or more")
        if self.workers < len(self.zones) * self.models:
            raise ValueError(f"{self.models} models need {len(self.zones) * self.models} workers or more")

    def random(self, what: str) -> Random:
        return Random(f"{self.seed} {what}")

    @cached_property
    def all_partitions(self) -> Sequence[Partition]:
        return divide(self.partitions)

    @cached_property
    def model_names(self) -> Sequence[str]:
        return tuple(f"model-{rank:03d}" for rank in range(self.models))

    @cached_property
    def workers_of(self) -> Mapping[str, int]:
        """How many workers each model has: one in each zone at least, the others by its popularity."""
        weights = [(rank + 1) ** -_SKEW for rank in range(self.models)]
        least = len(self.zones)
        spare = self.workers - least * self.models
        ends = [round(spare * part / sum(weights)) for part in accumulate(weights)]
        counts = [least + end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        return dict(zip(self.model_names, counts, strict=True))

    def partition_of(self, model: str) -> Partition:
        return self.all_partitions[shard_of(model) % self.partitions]

    @cached_property
    def models_in(self) -> Mapping[Partition, Sequence[str]]:
        """Models by partition; those without any left out."""
        found: dict[Partition, list[str]] = {}
        for model in self.model_names:
            found.setdefault(self.partition_of(model), []).append(model)
        return dict(sorted(found.items()))

    @cached_property
    def scheduler_names(self) -> Sequence[str]:
        return tuple(f"scheduler-{number}" for number in range(self.schedulers))

    def zone_of_scheduler(self, name: str) -> str:
        return self.zones[int(name.rpartition("-")[2]) % len(self.zones)]


@dataclass(frozen=True, slots=True)
class Timeline:
    """When things happen, in seconds of simulated time."""

    start_s: float
    join_s: float
    leave_s: float
    kill_s: float
    back_s: float
    zone_lost_s: float
    zone_back_s: float
    rush_s: float
    rush_kill_s: float
    rush_back_s: float
    rush_end_s: float
    end_s: float

    @classmethod
    def of(cls, fleet: Fleet) -> Timeline:
        """Leaders are there 3 s after the start; then requests come."""
        start_s = START_S + 3.0
        parts = (0.0, 0.06, 0.11, 0.17, 0.22, 0.28, 0.5, 0.6, 0.75, 0.8, 0.9, 1.0)
        return cls(*(start_s + part * fleet.seconds for part in parts))


QUICK = Fleet(workers=160, models=8, schedulers=5, partitions=4, small_tenants=20, seconds=40.0)
