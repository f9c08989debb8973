"""What can be set about the gateway: `INFERFLUX_GATEWAY_...`, beside what every service shares."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from inferflux.common.settings import ServiceSettings

from .model_text import TextLimits
from .relay import RelayLimits


class GatewaySettings(ServiceSettings):
    """Settings of one gateway process."""

    model_config = SettingsConfigDict(env_prefix="INFERFLUX_GATEWAY_")

    # Where clients call, host:port; port 0 takes a free one.
    listen: str = "127.0.0.1:50051"
    policy_address: str = Field("127.0.0.1:50052", validation_alias="INFERFLUX_POLICY_ADDRESS")
    # Longest wait for one answer of the policy service.
    policy_timeout_s: float = Field(default=2.0, gt=0, le=60)
    # Streams at the same time; one more is refused.
    max_streams: int = Field(default=2048, ge=1, le=100_000)
    # Of one tenant; 0: no more than are left free, which for a tenant alone is half of all.
    max_streams_per_tenant: int = Field(default=0, ge=0, le=100_000)
    # Longest resume window that a request may ask for. The replay buffer should keep tokens for as long.
    max_resume_window_s: int = Field(default=300, ge=0, le=86_400)
    # All texts of a request together. gRPC itself refuses messages above 16 MiB.
    max_text_bytes: int = Field(default=4 << 20, ge=1, le=15 << 20)
    # Longest wait for the scheduler to confirm a cancellation.
    cancel_timeout_s: float = Field(default=2.0, gt=0, le=60)

    # How long missing tokens may stay missing before the stream is given up.
    gap_limit_s: float = Field(default=30.0, gt=0, le=600)
    # How long a stream may be silent before the replay buffer is asked.
    silence_s: float = Field(default=4.0, gt=0, le=60)
    # How long a stream may be silent before it is given up.
    silence_limit_s: float = Field(default=900.0, gt=0)

    # Tokenizer processes at the same time, one for each model; the idle one asked least recently ends first.
    text_processes: int = Field(default=16, ge=1, le=1024)
    # Rendering and tokenizing one text; its tokenizer process is killed when it is over.
    text_time_limit_s: float = Field(default=2.0, gt=0, le=60)
    # Loading one tokenizer.
    text_load_limit_s: float = Field(default=30.0, gt=0, le=600)
    # Texts of a model worked on at the same time.
    text_threads: int = Field(default=2, ge=1, le=16)
    # Texts of a model that may wait for a thread; one more is refused.
    text_queue_limit: int = Field(default=1024, ge=0, le=100_000)
    # Address space of a tokenizer process: 512 MiB of it are the stack of each thread.
    text_memory_bytes: int = Field(default=4 << 30, ge=1 << 30)
    # A rendered prompt.
    text_rendered_bytes: int = Field(default=8 << 20, ge=1024, le=48 << 20)

    @property
    def text_limits(self) -> TextLimits:
        return TextLimits(
            processes=self.text_processes,
            threads=self.text_threads,
            waiting=self.text_queue_limit,
            time_limit_s=self.text_time_limit_s,
            load_limit_s=self.text_load_limit_s,
            memory_bytes=self.text_memory_bytes,
            rendered_bytes=self.text_rendered_bytes,
        )

    @property
    def relay_limits(self) -> RelayLimits:
        return RelayLimits(
            silence_s=self.silence_s, silence_limit_s=self.silence_limit_s, gap_limit_s=self.gap_limit_s
        )
