"""What can be set of a worker, by environment variables named INFERFLUX_WORKER_<FIELD>."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from inferflux.common.checks import MAX_SEQUENCES
from inferflux.common.settings import EXPERT, ServiceSettings, SubjectToken, unique_name


class WorkerSettings(ServiceSettings):
    """Settings of one worker: one model on one engine."""

    model_config = SettingsConfigDict(env_prefix="INFERFLUX_WORKER_", frozen=True)

    id: SubjectToken = Field(
        default_factory=unique_name,
        description="name in subjects, unique among the workers: 1-64 of A-Z a-z 0-9 _ -",
    )
    model_path: Path = Field(description="the GGUF file to serve")
    model_name: str = Field(
        default="", description="the name clients use; empty takes the file's, without `.gguf`"
    )
    slots: int = Field(default=16, ge=1, le=MAX_SEQUENCES, description="requests that run at once")
    sequences: int = Field(
        default=0,
        ge=0,
        le=MAX_SEQUENCES,
        description="sequences of the engine: the slots, and places beside them "
        "in which parked requests keep their KV cells; 0: twice the slots",
        json_schema_extra=EXPERT,
    )
    kv_cells: int = Field(
        default=0, ge=0, description="tokens the KV cache holds; 0 chooses from slots and context length"
    )
    prefill_cells: int | None = Field(
        default=None,
        ge=0,
        description="KV cells of the prefill context, in memory beside `KV_CELLS`. A CPU computes prompts of "
        "several steps there; 0: all prompts are chunked in mixed batches; unset: a quarter of the KV cells, "
        "at most 8,192 or the context length",
        json_schema_extra=EXPERT,
    )
    context_length: int = Field(
        default=0, ge=0, description="most tokens of one request; 0 takes the model's"
    )
    threads: int = Field(
        default=0,
        ge=0,
        le=512,
        description="CPU threads of the engine; 0 takes every core this process may use: those of its CPU "
        "affinity, or the whole cores of its cgroup's CPU quota if they are fewer",
    )
    batch_tokens: int = Field(
        default=2048,
        ge=32,
        le=65536,
        description="most tokens of one engine step",
        json_schema_extra=EXPERT,
    )
    gpu_layers: int = Field(default=-1, ge=-1, description="layers on the GPU, if there is one; -1 for all")
    flash_attention: bool = Field(
        default=True,
        description="fused attention; off only for backends without it",
        json_schema_extra=EXPERT,
    )
    max_itl_factor: float = Field(
        default=5.0,
        ge=1.0,
        le=1000,
        description="prompts may lengthen the gap between a decode's tokens to this many times a step "
        "without any prompt",
        json_schema_extra=EXPERT,
    )
    step_limit_s: float = Field(
        default=0.2,
        gt=0,
        le=60,
        description="an engine step with prefill should take at most this long",
        json_schema_extra=EXPERT,
    )
    host_bytes: int = Field(
        default=2 << 30,
        ge=0,
        description="host memory for what leaves the KV cache: the state of preempted requests and of cached "
        "prefixes; beyond it the least used prefixes, then the least urgent requests, go to disk or are "
        "recomputed",
    )
    disk_path: Path | None = Field(
        default=None,
        description="folder for KV state that host memory has no room for; unset: there is none. "
        "Workers of one model may share it: each takes a numbered folder in it for itself",
    )
    disk_bytes: int = Field(
        default=4 << 30,
        ge=0,
        description="most bytes of files in `DISK_PATH`, of each worker; 0: there are none",
    )
    load_limit_s: float = Field(
        default=600.0,
        gt=0,
        le=86400,
        description="an engine that has not loaded its model and decoded with it by then is killed",
        json_schema_extra=EXPERT,
    )
    stuck_s: float = Field(
        default=60.0,
        ge=0,
        description="an engine that has requests to run and makes no step for this long is killed "
        "and started again; 0: never",
        json_schema_extra=EXPERT,
    )
    heartbeat_interval_s: float = Field(
        default=1.0,
        gt=0,
        le=2.0,
        description="seconds between heartbeats",
        json_schema_extra=EXPERT,
    )

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
