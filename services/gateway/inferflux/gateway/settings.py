"""What can be set about the gateway: `INFERFLUX_GATEWAY_...`, beside what every service shares."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from inferflux.common.settings import EXPERT, ServiceSettings

from .model_tokenizer import TokenizerLimits
from .relay import RelayLimits


class GatewaySettings(ServiceSettings):
    """Settings of one gateway process."""

    model_config = SettingsConfigDict(env_prefix="INFERFLUX_GATEWAY_")

    listen: str = Field(default="127.0.0.1:50051", description="where clients call; port 0 takes a free one")
    policy_address: str = Field(
        default="127.0.0.1:50052",
        validation_alias="INFERFLUX_POLICY_ADDRESS",
        description="host:port of policy",
    )
    policy_timeout_s: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="longest wait for one answer of policy",
        json_schema_extra=EXPERT,
    )
    max_streams: int = Field(
        default=2048, ge=1, le=100_000, description="token streams at the same time; one more is refused"
    )
    max_streams_per_tenant: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="the same for each tenant. 0: beside others no more than are left free; "
        "a tenant alone has all but a sixteenth",
    )
    max_resume_window_s: int = Field(
        default=300,
        ge=0,
        le=86_400,
        description="longest resume window that a request may ask for; "
        "the replay stream should keep tokens for as long",
    )
    # gRPC itself refuses messages above 16 MiB.
    max_text_bytes: int = Field(
        default=4 << 20, ge=1, le=15 << 20, description="bytes of all texts of one request together"
    )
    cancel_timeout_s: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="longest wait for the scheduler to confirm a cancellation",
        json_schema_extra=EXPERT,
    )

    gap_limit_s: float = Field(
        default=30.0,
        gt=0,
        le=600,
        description="a stream whose missing tokens stay missing for this long is given up",
        json_schema_extra=EXPERT,
    )
    silence_s: float = Field(
        default=4.0,
        gt=0,
        le=60,
        description="after this long without a chunk, the gateway asks the replay stream",
        json_schema_extra=EXPERT,
    )
    silence_limit_s: float = Field(
        default=900.0,
        gt=0,
        description="a stream without a chunk for this long is given up",
        json_schema_extra=EXPERT,
    )

    tokenizer_processes: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="tokenizer processes at the same time, one for each model; "
        "for one more, the idle one that was asked least recently ends",
    )
    tokenizer_time_limit_s: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="rendering and tokenizing one text; over it, the model's tokenizer process is killed "
        "and started again",
        json_schema_extra=EXPERT,
    )
    tokenizer_load_limit_s: float = Field(
        default=30.0, gt=0, le=600, description="loading one tokenizer", json_schema_extra=EXPERT
    )
    tokenizer_threads: int = Field(
        default=2,
        ge=1,
        le=16,
        description="texts of a model worked on at the same time",
        json_schema_extra=EXPERT,
    )
    tokenizer_queue_limit: int = Field(
        default=1024,
        ge=0,
        le=100_000,
        description="texts of a model that may wait for a thread; one more is refused",
        json_schema_extra=EXPERT,
    )
    tokenizer_memory_bytes: int = Field(
        default=4 << 30,
        ge=1 << 30,
        description="address space of a tokenizer process; 512 MiB of it are the stack of each thread",
        json_schema_extra=EXPERT,
    )
    tokenizer_rendered_bytes: int = Field(
        default=8 << 20,
        ge=1024,
        le=48 << 20,
        description="bytes of a rendered prompt",
        json_schema_extra=EXPERT,
    )

    @property
    def tokenizer_limits(self) -> TokenizerLimits:
        return TokenizerLimits(
            processes=self.tokenizer_processes,
            threads=self.tokenizer_threads,
            waiting=self.tokenizer_queue_limit,
            time_limit_s=self.tokenizer_time_limit_s,
            load_limit_s=self.tokenizer_load_limit_s,
            memory_bytes=self.tokenizer_memory_bytes,
            rendered_bytes=self.tokenizer_rendered_bytes,
        )

    @property
    def relay_limits(self) -> RelayLimits:
        return RelayLimits(
            silence_s=self.silence_s, silence_limit_s=self.silence_limit_s, gap_limit_s=self.gap_limit_s
        )
