"""What the scheduler is configured with."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from inferflux.common import subjects
from inferflux.common.settings import ServiceSettings, SubjectToken, unique_name

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

    # Unique among schedulers: one that starts again under its name takes its lease up at once.
    id: SubjectToken = Field(default_factory=unique_name)
    # What is led together, and the models it consists of; empty: all.
    partition: SubjectToken = subjects.ALL_MODELS
    models: str = ""
    # A leader that is not heard of for this long is replaced.
    lease_s: float = Field(default=1.5, ge=0.3, le=60)
    policy: PolicyName = "priority"
    # One level of priority is worth this much waiting.
    aging_s: float = Field(default=2.0, gt=0, le=3600)
    # Until operators change them: see `admin`.
    fairness_preempt: bool = Field(default=False, validation_alias="INFERFLUX_FAIRNESS_PREEMPT")
    fairness_high_pri: int = Field(
        default=5, ge=-1000, le=1000, validation_alias="INFERFLUX_FAIRNESS_HIGH_PRI"
    )
    fairness_timeslice: int = Field(
        default=0, ge=0, le=1_000_000, validation_alias="INFERFLUX_FAIRNESS_TIMESLICE"
    )
    # Shares of tenants under the policy `fair`; 1 for who is not in it.
    tenant_weights: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default_factory=dict
    )
    # New requests that may wait here, in all and of one tenant; 0: no bound but the work queue's, of which a
    # tenant may fill no more than it leaves free.
    max_queued: int = Field(default=0, ge=0)
    max_queued_per_tenant: int = Field(default=0, ge=0)
    # 0: as many as the worker has free slots.
    max_batch_size: int = Field(default=0, ge=0, le=4096)
    max_batch_tokens: int = Field(default=8192, ge=1)
    max_retries: int = Field(default=5, ge=0, le=100)
    no_worker_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    worker_dead_s: float = Field(default=3.0, gt=0, le=600)
    # A running request that gets no further for this long is given up there and tried elsewhere; 0: never.
    stuck_s: float = Field(default=120.0, ge=0, le=86_400)
    # What waits for its turn on one worker for longer goes on with another that has room.
    move_after_s: float = Field(default=2.0, ge=0, le=3600)
    # A request outlives a gateway that stopped reporting a reader of it by this, or by its resume window if
    # that is longer; 0: for ever.
    unread_limit_s: float = Field(default=30.0, ge=0, le=86_400)
    # At the start, how long to listen for heartbeats before the first dispatch.
    settle_s: float = Field(default=1.2, ge=0, le=60)
    dispatch_timeout_s: float = Field(default=2.0, gt=0, le=60)
    tick_interval_s: float = Field(default=0.1, gt=0, le=1)
    ack_wait_s: float = Field(default=60.0, ge=3, le=3600)

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
