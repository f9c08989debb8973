"""What the scheduler is configured with."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from inferflux.common.settings import ServiceSettings

from .limits import Limits
from .policies import PolicyName


class SchedulerSettings(ServiceSettings):
    """`INFERFLUX_SCHEDULER_...`, beside what every service has."""

    model_config = SettingsConfigDict(env_prefix="INFERFLUX_SCHEDULER_", frozen=True)

    policy: PolicyName = "priority"
    # One level of priority is worth this much waiting.
    aging_s: float = Field(default=2.0, gt=0, le=3600)
    # 0: as many as the worker has free slots.
    max_batch_size: int = Field(default=0, ge=0, le=4096)
    max_batch_tokens: int = Field(default=8192, ge=1)
    max_retries: int = Field(default=5, ge=0, le=100)
    no_worker_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    worker_dead_s: float = Field(default=3.0, gt=0, le=600)
    # At the start, how long to listen for heartbeats before the first dispatch.
    settle_s: float = Field(default=1.2, ge=0, le=60)
    dispatch_timeout_s: float = Field(default=2.0, gt=0, le=60)
    tick_interval_s: float = Field(default=0.1, gt=0, le=1)
    ack_wait_s: float = Field(default=60.0, ge=3, le=3600)

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
        )
