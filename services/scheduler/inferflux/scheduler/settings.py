"""Settings of the scheduler."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from inferflux.common.contract.partitions import SHARDS
from inferflux.common.process.settings import ServiceSettings, SubjectToken, setting, unique_name

from .core.lifecycle.fairness import FairnessSettings
from .core.order.queue_policies import PolicyName
from .core.types.limits import Limits


class SchedulerSettings(ServiceSettings):
    """`INFERFLUX_SCHEDULER_...`, beside what every service has."""

    model_config = SettingsConfigDict(env_prefix="INFERFLUX_SCHEDULER_", frozen=True)

    id: SubjectToken = Field(
        default_factory=unique_name,
        description="its name among the schedulers, unique: 1-64 of A-Z a-z 0-9 _ -. "
        "One that starts again under its name leads at once",
    )
    partitions: int = setting(
        1,
        "parts that models are divided into, each with a leader: the same for all schedulers. See "
        "[several schedulers](#several-schedulers)",
        ge=1,
        le=SHARDS,
    )
    lease_s: float = setting(
        1.5,
        "a standby replaces a leader that has not renewed its lease for this long",
        ge=0.3,
        le=60,
        expert=True,
    )
    policy: PolicyName = setting(
        "priority", "the order of the queue: see [scheduling](scheduling.md#order-of-the-queue)"
    )
    aging_s: float = setting(2.0, "waiting this long is worth one level of priority", gt=0, le=3600)
    # Until operators change them: see `admin`.
    fairness_preempt: bool = setting(
        False,
        "whether urgent requests preempt others: see [fairness](#fairness)",
        variable="INFERFLUX_FAIRNESS_PREEMPT",
    )
    fairness_high_pri: int = setting(
        5,
        "requests of this priority and above are urgent",
        variable="INFERFLUX_FAIRNESS_HIGH_PRI",
        ge=-1000,
        le=1000,
    )
    fairness_timeslice: int = setting(
        0,
        "others yield after this many new tokens; 0: never",
        variable="INFERFLUX_FAIRNESS_TIMESLICE",
        ge=0,
        le=1_000_000,
    )
    fairness_ordinary_share: float = setting(
        0.25,
        "of the slots, guaranteed to requests that are not urgent under the policy `priority`: "
        "see [urgent requests](scheduling.md#urgent-requests)",
        variable="INFERFLUX_FAIRNESS_ORDINARY_SHARE",
        ge=0,
        le=0.9,
    )
    tenant_weights: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description='shares of tenants under the policy `fair`, as in `{"acme": 2}`; '
        "a tenant that is not named has 1",
    )
    max_queued: int = setting(
        0,
        "new requests that may wait; one more is refused with RESOURCE_EXHAUSTED. "
        "0: no bound but the work queue's",
        ge=0,
    )
    max_queued_per_tenant: int = setting(
        0,
        "the same for each tenant. 0: beside others no more than are left free in the queue; "
        "a tenant alone has all but a sixteenth",
        ge=0,
    )
    max_batch_size: int = setting(
        0, "requests in one batch; 0: as many as the worker has free slots", ge=0, le=4096, expert=True
    )
    max_batch_tokens: int = setting(8192, "prompt tokens in one batch", ge=1, expert=True)
    max_retries: int = setting(
        5,
        "how often a request is tried again after its worker was lost; "
        "[deaths of engines](faults.md#which-request-killed-the-engine) do not count",
        ge=0,
        le=100,
        expert=True,
    )
    no_worker_timeout_s: float = setting(
        10.0,
        "how long a request waits for a worker of its model before it fails with UNAVAILABLE",
        gt=0,
        le=3600,
    )
    model_wait_s: float = setting(
        5.0,
        "requests wait this long for a model that has no room, before [a model that is in use]"
        "(scheduling.md#which-models-are-loaded) is unloaded for it. A model in use stays loaded at least "
        "this long",
        ge=0,
        le=3600,
    )
    worker_dead_s: float = setting(
        3.0, "a worker without a heartbeat for this long counts as dead", gt=0, le=600, expert=True
    )
    stuck_s: float = setting(
        120.0,
        "a running request that makes no progress for this long is tried on another worker; 0: never",
        ge=0,
        le=86_400,
        expert=True,
    )
    move_after_s: float = setting(
        2.0,
        "a request that waits longer than this to resume on its worker goes on with another that has room",
        ge=0,
        le=3600,
        expert=True,
    )
    prefix_wait_s: float = setting(
        5.0,
        "a request waits for [the worker that has its prefix](scheduling.md#placement), where waiting is "
        "expected to be shorter than computing, for no longer than this; 0: never",
        ge=0,
        le=3600,
        expert=True,
    )
    unread_limit_s: float = setting(
        30.0,
        "a request outlives a gateway that stopped reporting a reader of it by this, "
        "or by its resume window if that is longer; 0: for ever",
        ge=0,
        le=86_400,
    )
    settle_s: float = setting(
        1.2,
        "at the start, how long to listen for heartbeats before the first dispatch",
        ge=0,
        le=60,
        expert=True,
    )
    dispatch_timeout_s: float = setting(
        2.0, "longest wait for a worker to answer a batch", gt=0, le=60, expert=True
    )
    prefix_lookup_limit_s: float = setting(
        0.05,
        "longest wait for the [prefix index](cache-design.md#the-prefix-index); "
        "a request goes on without hints then",
        gt=0,
        le=1,
        expert=True,
    )
    tick_interval_s: float = setting(
        0.1, "how often deadlines and timeouts are checked", gt=0, le=1, expert=True
    )
    ack_wait_s: float = setting(
        60.0,
        "a job whose scheduler has been silent about it for this long is redelivered",
        ge=3,
        le=3600,
        expert=True,
    )

    @property
    def fairness(self) -> FairnessSettings:
        return FairnessSettings(
            enable_preemption=self.fairness_preempt,
            high_priority_threshold=self.fairness_high_pri,
            max_timeslice_tokens=self.fairness_timeslice,
        )

    @property
    def limits(self) -> Limits:
        return Limits(
            max_batch_size=self.max_batch_size,
            max_batch_tokens=self.max_batch_tokens,
            max_retries=self.max_retries,
            no_worker_timeout_s=self.no_worker_timeout_s,
            model_wait_s=self.model_wait_s,
            worker_dead_s=self.worker_dead_s,
            settle_s=self.settle_s,
            hold_interval_s=self.ack_wait_s / 3,
            stuck_s=self.stuck_s,
            unread_limit_s=self.unread_limit_s,
            move_after_s=self.move_after_s,
            prefix_wait_s=self.prefix_wait_s,
            max_queued=self.max_queued,
            max_queued_per_tenant=self.max_queued_per_tenant,
            queue_limit=self.queue_limit,
        )
