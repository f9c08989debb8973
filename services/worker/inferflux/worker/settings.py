"""What can be set of a worker, by environment variables named INFERFLUX_WORKER_<FIELD>."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from inferflux.common.checks import MAX_SEQUENCES
from inferflux.common.settings import ServiceSettings, SubjectToken, unique_name


class WorkerSettings(ServiceSettings):
    """Settings of one worker: one model on one engine."""

    model_config = SettingsConfigDict(env_prefix="INFERFLUX_WORKER_", frozen=True)

    id: SubjectToken = Field(
        default_factory=unique_name, description="Name in subjects, unique in the fleet."
    )
    model_path: Path = Field(description="GGUF file to serve.")
    model_name: str = Field("", description="Name clients use; empty takes the file's name without .gguf.")
    slots: int = Field(16, ge=1, le=MAX_SEQUENCES, description="Sequences that run at once.")
    sequences: int = Field(
        0,
        ge=0,
        le=MAX_SEQUENCES,
        description="Slots and places beside them for parked sequences; 0 for twice the slots.",
    )
    kv_cells: int = Field(0, ge=0, description="Tokens the KV cache holds; 0 chooses from slots and context.")
    prefill_cells: int | None = Field(
        None,
        ge=0,
        description="Tokens of prompts of several steps that a CPU computes apart from the streams; 0: all "
        "go beside them; unset: a quarter of the KV cells, at most 8,192 or the context length.",
    )
    context_length: int = Field(0, ge=0, description="Most tokens of one request; 0 takes the model's.")
    threads: int = Field(0, ge=0, le=512, description="CPU threads; 0 takes those of CPU affinity and quota.")
    batch_tokens: int = Field(2048, ge=32, le=65536, description="Most tokens of one engine step.")
    gpu_layers: int = Field(-1, ge=-1, description="Layers on the GPU, if there is one; -1 for all.")
    flash_attention: bool = Field(True, description="Fused attention; off only for backends without it.")
    step_stretch: float = Field(
        5.0, ge=1.0, le=1000, description="Prompts may make a stream wait this many times a step without any."
    )
    step_limit_s: float = Field(
        0.2, gt=0, le=60, description="Seconds an engine step with prefill should take at most."
    )
    swap_bytes: int = Field(
        2 << 30, ge=0, description="Host memory for swapped sequences; 0 computes them again instead."
    )
    load_limit_s: float = Field(
        600.0, gt=0, le=86400, description="Seconds an engine may take to load the model and to try it."
    )
    stuck_s: float = Field(
        60.0,
        ge=0,
        description="An engine that should run but reports nothing for so long is killed; 0: never.",
    )
    heartbeat_interval_s: float = Field(1.0, gt=0, le=2.0, description="Seconds between status messages.")

    @field_validator("sequences")
    @classmethod
    def _sequences_hold_the_slots(cls, value: int, info: ValidationInfo) -> int:
        if 0 < value < info.data.get("slots", 1):
            raise ValueError("must be 0 or at least INFERFLUX_WORKER_SLOTS")
        return value

    @property
    def all_sequences(self) -> int:
        """Sequence ids of the engine: those that may run at once and those beside them."""
        return self.sequences or min(2 * self.slots, MAX_SEQUENCES)

    @property
    def served_name(self) -> str:
        return self.model_name or self.model_path.name.removesuffix(".gguf")
