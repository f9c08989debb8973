"""What the scheduler is configured with."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from inferflux.common import subjects
from inferflux.common.settings import EXPERT, ServiceSettings, SubjectToken, unique_name

from .core.fairness import FairnessSettings
from .core.limits import Limits
from .core.policies import PolicyName


def _names(text: str) -> tuple[str, ...]:
    """The names of a list, JSON or with commas between, each once, sorted."""
    names = json.loads(text) if text.lstrip().startswith("[") else text.split(",")
    if not all(isinstance(name, str) for name in names):
        raise ValueError("must be a list of names")
    return tuple(sorted({name.strip() for name in names} - {""}))


class SchedulerSettings(ServiceSettings):
    """`INFERFLUX_SCHEDULER_...`, beside what every service has."""

    model_config = SettingsConfigDict(env_prefix="INFERFLUX_SCHEDULER_", frozen=True)

    id: SubjectToken = Field(
        default_factory=unique_name,
        description="its name among the schedulers, unique: 1-64 of A-Z a-z 0-9 _ -. "
        "One that starts again under its name leads at once",
    )
    partition: SubjectToken = Field(
        default=subjects.ALL_MODELS,
        description="the part of the models it leads, by name: see [several schedulers](#several-schedulers)",
    )
    models: str = Field(
        default="",
        description="the models of its partition, with commas between or as JSON; empty is all",
    )
    lease_s: float = Field(
        default=1.5,
        ge=0.3,
        le=60,
        description="a standby replaces a leader that has not renewed its lease for this long",
        json_schema_extra=EXPERT,
    )
    policy: PolicyName = Field(
        default="priority",
        description="the order of the queue: see [scheduling](scheduling.md#order-of-the-queue)",
    )
    aging_s: float = Field(
        default=2.0, gt=0, le=3600, description="waiting this long is worth one level of priority"
    )
    # Until operators change them: see `admin`.
    fairness_preempt: bool = Field(
        default=False,
        validation_alias="INFERFLUX_FAIRNESS_PREEMPT",
        description="whether urgent requests preempt others: see [fairness](#fairness)",
    )
    fairness_high_pri: int = Field(
        default=5,
        ge=-1000,
        le=1000,
        validation_alias="INFERFLUX_FAIRNESS_HIGH_PRI",
        description="requests of this priority and above are urgent",
    )
    fairness_timeslice: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        validation_alias="INFERFLUX_FAIRNESS_TIMESLICE",
        description="others yield after this many new tokens; 0: never",
    )
    fairness_ordinary_share: float = Field(
        default=0.25,
        ge=0,
        le=0.9,
        validation_alias="INFERFLUX_FAIRNESS_ORDINARY_SHARE",
        description="of the slots, guaranteed to requests that are not urgent under the policy `priority`: "
        "see [urgent requests](scheduling.md#urgent-requests)",
    )
    tenant_weights: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description='shares of tenants under the policy `fair`, as in `{"acme": 2}`; '
        "a tenant that is not named has 1",
    )
    max_queued: int = Field(
        default=0,
        ge=0,
        description="new requests that may wait; one more is refused with RESOURCE_EXHAUSTED. "
        "0: no bound but the work queue's",
    )
    max_queued_per_tenant: int = Field(
        default=0,
        ge=0,
        description="the same for each tenant. 0: beside others no more than are left free in the queue; "
        "a tenant alone has all but a sixteenth",
    )
    max_batch_size: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="requests in one batch; 0: as many as the worker has free slots",
        json_schema_extra=EXPERT,
    )
    max_batch_tokens: int = Field(
        default=8192, ge=1, description="prompt tokens in one batch", json_schema_extra=EXPERT
    )
    max_retries: int = Field(
        default=5,
        ge=0,
        le=100,
        description="how often a request is tried again after its worker was lost; "
        "[deaths of engines](architecture.md#which-request-killed-the-engine) do not count",
        json_schema_extra=EXPERT,
    )
    no_worker_timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="how long a request waits for a worker of its model before it fails with UNAVAILABLE",
    )
    worker_dead_s: float = Field(
        default=3.0,
        gt=0,
        le=600,
        description="a worker without a heartbeat for this long counts as dead",
        json_schema_extra=EXPERT,
    )
    stuck_s: float = Field(
        default=120.0,
        ge=0,
        le=86_400,
        description="a running request that makes no progress for this long is tried on another worker; "
        "0: never",
        json_schema_extra=EXPERT,
    )
    move_after_s: float = Field(
        default=2.0,
        ge=0,
        le=3600,
        description="a request that waits longer than this to resume on its worker "
        "goes on with another that has room",
        json_schema_extra=EXPERT,
    )
    unread_limit_s: float = Field(
        default=30.0,
        ge=0,
        le=86_400,
        description="a request outlives a gateway that stopped reporting a reader of it by this, "
        "or by its resume window if that is longer; 0: for ever",
    )
    settle_s: float = Field(
        default=1.2,
        ge=0,
        le=60,
        description="at the start, how long to listen for heartbeats before the first dispatch",
        json_schema_extra=EXPERT,
    )
    dispatch_timeout_s: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="longest wait for a worker to answer a batch",
        json_schema_extra=EXPERT,
    )
    prefix_lookup_limit_s: float = Field(
        default=0.005,
        gt=0,
        le=1,
        description="longest wait for the [prefix index](architecture.md#the-prefix-index); "
        "a request goes on without hints then",
        json_schema_extra=EXPERT,
    )
    tick_interval_s: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="how often deadlines and timeouts are checked",
        json_schema_extra=EXPERT,
    )
    ack_wait_s: float = Field(
        default=60.0,
        ge=3,
        le=3600,
        description="a job whose scheduler has been silent about it for this long is redelivered",
        json_schema_extra=EXPERT,
    )

    @field_validator("models")
    @classmethod
    def _are_names_of_a_named_partition(cls, value: str, info: ValidationInfo) -> str:
        if _names(value) and info.data.get("partition") == subjects.ALL_MODELS:
            variable = "INFERFLUX_SCHEDULER_PARTITION"
            raise ValueError(f"only some models: their partition needs a name of its own ({variable})")
        return value

    @property
    def model_names(self) -> tuple[str, ...]:
        """The models of the partition; empty: all."""
        return _names(self.models)

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
            worker_dead_s=self.worker_dead_s,
            settle_s=self.settle_s,
            hold_interval_s=self.ack_wait_s / 3,
            stuck_s=self.stuck_s,
            unread_limit_s=self.unread_limit_s,
            move_after_s=self.move_after_s,
            max_queued=self.max_queued,
            max_queued_per_tenant=self.max_queued_per_tenant,
            queue_limit=self.queue_limit,
        )
