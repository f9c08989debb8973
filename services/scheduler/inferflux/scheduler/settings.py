"""Settings of the scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from inferflux.common.contract.partitions import SHARDS
from inferflux.common.process.setting_kinds import SubjectToken
from inferflux.common.process.settings import ServiceSettings, setting, unique_name

from .core.lifecycle.fairness import FairnessSettings
from .core.order.queue_policies import PolicyName
from .core.order.running import ORDINARY_SHARE
from .core.types.limits import Limits

_LIMITS = Limits()
_FAIRNESS = FairnessSettings()


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
    )
    policy: PolicyName = setting(
        "priority",
        "the order of the queue: see [scheduling](scheduling.md#order-of-the-queue)",
        ordinary=True,
    )
    # Until operators change them: see `admin`.
    fairness_preempt: bool = setting(
        True,
        "whether urgent requests preempt others: see [fairness](#fairness)",
        variable="INFERFLUX_FAIRNESS_PREEMPT",
    )
    fairness_high_pri: int = setting(
        _FAIRNESS.high_priority_threshold,
        "requests of this priority and above are urgent",
        variable="INFERFLUX_FAIRNESS_HIGH_PRI",
        ge=-1000,
        le=1000,
    )
    fairness_timeslice: int = setting(
        _FAIRNESS.max_timeslice_tokens,
        "others yield after this many new tokens; 0: never",
        variable="INFERFLUX_FAIRNESS_TIMESLICE",
        ge=0,
        le=1_000_000,
    )
    fairness_ordinary_share: float = setting(
        ORDINARY_SHARE,
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
        _LIMITS.max_queued,
        "new requests that may wait; one more is refused with RESOURCE_EXHAUSTED. "
        "0: no bound but the work queue's",
        ge=0,
        ordinary=True,
    )
    max_queued_per_tenant: int = setting(
        _LIMITS.max_queued_per_tenant,
        "new requests of a tenant that may wait. 0: beside others no more than are left free in the queue; "
        "a tenant alone has all but a sixteenth",
        ge=0,
    )
    max_retries: int = setting(
        _LIMITS.max_retries,
        "how often a request is tried again after its worker was lost; "
        "[deaths of engines](faults.md#which-request-killed-the-engine) do not count",
        ge=0,
        le=100,
    )
    no_worker_timeout_s: float = setting(
        _LIMITS.no_worker_timeout_s,
        "how long a request waits for a worker of its model before it fails with UNAVAILABLE",
        gt=0,
        le=3600,
    )
    prefix_wait_s: float = setting(
        _LIMITS.prefix_wait_s,
        "a request waits for [the worker that has its prefix](scheduling.md#placement), where waiting is "
        "expected to be shorter than computing, for no longer than this; 0: never",
        ge=0,
        le=3600,
    )
    prefill_pool_size: int = setting(
        0,
        "[prefill workers](scheduling.md#prefill-and-decode-workers) that should be ready; 0: any number",
        variable="INFERFLUX_PREFILL_POOL_SIZE",
        ge=0,
        le=4096,
    )
    decode_pool_size: int = setting(
        0,
        "decode workers that should be ready; 0: any number",
        variable="INFERFLUX_DECODE_POOL_SIZE",
        ge=0,
        le=4096,
    )
    prefix_lookup_limit_s: float = setting(
        0.05,
        "longest wait for the [prefix index](cache-design.md#the-prefix-index); "
        "a request goes on without hints then",
        gt=0,
        le=1,
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
        return replace(
            _LIMITS,
            max_retries=self.max_retries,
            no_worker_timeout_s=self.no_worker_timeout_s,
            prefix_wait_s=self.prefix_wait_s,
            max_queued=self.max_queued,
            max_queued_per_tenant=self.max_queued_per_tenant,
            queue_limit=self.queue_limit,
            prefill_pool_size=self.prefill_pool_size,
            decode_pool_size=self.decode_pool_size,
        )
