"""Settings of a worker, by environment variables named INFERFLUX_WORKER_<FIELD>."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from inferflux.common.contract.checks import MAX_SEQUENCES
from inferflux.common.contract.messages import hosts
from inferflux.common.contract.requests import worker_pools
from inferflux.common.http.http_client import check_url
from inferflux.common.process.setting_kinds import (
    ByteCount,
    OptionalPath,
    OptionalSubjectToken,
    SubjectToken,
    listed,
)
from inferflux.common.process.settings import setting, unique_name

from .files.device_wish import (
    MOST_GPUS,
    MOST_LAYERS,
    DeviceWish,
    SplitMode,
    Switch,
    overrides_of,
    servers_of,
    tensor_split_of,
)
from .files.expert_ranks import ranks_of
from .files.kv_types import KvType
from .transfer.settings import KvSettings

# Sequence ids for cached prefixes, unless something else is asked for.
_CACHED_SEQUENCES = 64
_MOST_NULL_WORKERS = 1000
# What the engine's messages can say.
_MOST_INT32 = 2**31 - 1
_MOST_INT64 = 2**63 - 1


def _url(value: str) -> str:
    check_url(value)
    return value


def _read_by(read: Callable[[list[str]], object]) -> AfterValidator:
    """A check that `read` can read the parts of a list."""

    def check(value: str) -> str:
        read(listed(value))
        return value

    return AfterValidator(check)


class WorkerSettings(KvSettings):
    """Settings of one worker: its models, and an engine for each."""

    model_config = SettingsConfigDict(env_prefix="INFERFLUX_WORKER_", frozen=True)

    id: SubjectToken = Field(
        default_factory=unique_name,
        description="name in subjects, unique among the workers: 1-60 of A-Z a-z 0-9 _ -. A model that is "
        "loaded beside another has this name and a number",
        max_length=hosts.LONGEST_HOST_ID,
    )
    pool: SubjectToken = setting(
        worker_pools.DEFAULT,
        "the [pool](policy.md#worker-pools) it belongs to: keys can be held to the workers of some pools",
    )
    zone: OptionalSubjectToken = setting(
        "",
        "the [zone](fleet.md#zones) that it is in, such as a rack or a data centre; empty: it is not known",
        variable="INFERFLUX_ZONE",
    )
    model_path: OptionalPath = setting(
        None,
        "the GGUF file to serve from the start; it stays loaded. Unset or empty: models of "
        "`INFERFLUX_CONFIG`, or none until one is asked for",
        ordinary=True,
    )
    model_name: str = setting(
        "", "the name clients use for it; empty takes the file's, without `.gguf`", ordinary=True
    )
    config: OptionalPath = setting(
        None,
        "a YAML file whose `models` this worker [knows](models.md#a-file-of-models) from the start",
        variable="INFERFLUX_CONFIG",
        ordinary=True,
    )
    models_max: int = setting(
        8,
        "models that may be loaded at once on a worker",
        variable="INFERFLUX_MODELS_MAX",
        ge=1,
        le=hosts.MOST_LOADED,
    )
    models_bytes: ByteCount = setting(
        0,
        "memory that all models of a worker may take together, by what their files say; 0: what is free when "
        "it starts",
        variable="INFERFLUX_MODELS_BYTES",
        ge=0,
        le=_MOST_INT64,
    )
    models_idle_s: float = setting(
        0.0,
        "a model that is not pinned and was not used for this long is unloaded; 0: only to make room "
        "for another",
        variable="INFERFLUX_MODELS_IDLE_S",
        ge=0,
        le=1e9,
    )
    models_store: OptionalPath = setting(
        None,
        "folder of [models that are pulled](models.md#pulling-models); unset or empty: none are. "
        "`inferctl up` has one in its state directory",
        variable="INFERFLUX_MODELS_STORE",
        ordinary=True,
    )
    models_store_bytes: ByteCount = setting(
        0,
        "most bytes that the folder `INFERFLUX_MODELS_STORE` may take; 0: what the disk has free",
        variable="INFERFLUX_MODELS_STORE_BYTES",
        ge=0,
        le=_MOST_INT64,
    )
    hf_endpoint: Annotated[str, AfterValidator(_url)] = setting(
        "https://huggingface.co",
        "where `hf:` names are looked up",
        variable="INFERFLUX_HF_ENDPOINT",
    )
    hf_token: SecretStr = setting(
        SecretStr(""),
        "sent to `INFERFLUX_HF_ENDPOINT` alone, for repositories that ask who reads them; empty: none",
        variable="INFERFLUX_HF_TOKEN",
    )
    ollama_endpoint: Annotated[str, AfterValidator(_url)] = setting(
        "https://registry.ollama.ai",
        "the registry in which `ollama:` names are looked up",
        variable="INFERFLUX_OLLAMA_ENDPOINT",
    )
    engine: Literal["llama", "null"] = setting(
        "llama",
        "what makes the tokens: `llama`, llama.cpp; `null`, "
        "[no model](operations.md#workers-without-a-model), for measurements and tests of all else",
    )
    null_step_s: float = setting(
        0.02,
        "a step of the null engine, in which each running request has a token",
        gt=0,
        le=60,
    )
    null_workers: int = setting(
        1,
        "workers in this process, each with a null engine; of more than one, the first is `ID_0`",
        ge=1,
        le=_MOST_NULL_WORKERS,
    )
    slots: int = setting(16, "requests that run at once", ge=1, le=MAX_SEQUENCES, ordinary=True)
    sequences: int = setting(
        0,
        "sequences of the engine: the slots, and places beside them in which parked requests "
        "and cached prefixes keep their KV cells; 0: twice the slots, and 64 for cached prefixes",
        ge=0,
        le=MAX_SEQUENCES,
    )
    kv_cells: int = setting(
        0,
        "tokens the KV cache holds; 0 chooses from slots and context length",
        ge=0,
        le=_MOST_INT32,
    )
    kv_bytes: ByteCount = setting(
        0,
        "memory for the KV cache's keys and values, such as `512MB` or `2GiB`, instead of `KV_CELLS`. "
        "The prefill context's cells and what a step computes with are beside it; 0: `KV_CELLS` decides",
        ge=0,
        le=_MOST_INT64,
        ordinary=True,
    )
    prefill_cells: int | None = setting(
        None,
        "KV cells of the prefill context, in memory beside `KV_CELLS`. A CPU computes prompts of "
        "several steps there; 0: all prompts are chunked in mixed batches; unset: 0 if `INFERFLUX_ROLE` is "
        "`prefill`, else a quarter of the KV cells, at most 8,192 or the context length",
        ge=0,
        le=_MOST_INT32,
    )
    prefix_cache: bool = setting(
        True,
        "keep what ended requests have computed, so that others of the same "
        "cache scope that begin alike need not compute it; host memory and disk are turned off by their "
        "own sizes",
    )
    deterministic: bool = setting(
        False,
        "whether requests that leave it open get the "
        "[same answer](caching.md#the-same-answer-again) whatever else is cached or runs; slower",
    )
    context_length: int = setting(
        0, "most tokens of one request; 0 takes the model's", ge=0, le=_MOST_INT32, ordinary=True
    )
    threads: int = setting(
        0,
        "CPU threads of the engine; 0 takes every core this process may use: those of its CPU "
        "affinity, or the whole cores of its cgroup's CPU quota if they are fewer",
        ge=0,
        le=512,
        ordinary=True,
    )
    batch_tokens: int = setting(2048, "most tokens of one engine step", ge=32, le=65536)
    gpu_layers: int = setting(
        -1,
        "layers on [GPUs](devices.md), if there are any; -1 for all. A worker without a GPU warns once where "
        "some are asked for, and uses the CPU",
        ge=-1,
        le=_MOST_INT32,
        ordinary=True,
    )
    split_mode: SplitMode = setting(
        "layer",
        "how several [GPUs](devices.md#several-gpus) share a model: `layer`, each has whole layers; `none`, "
        "`MAIN_GPU` has all; `row` and `tensor`, each has a part of every layer",
    )
    tensor_split: Annotated[str, _read_by(tensor_split_of)] = setting(
        "",
        "what part of a model each GPU gets, such as `3,1`; empty: by their free memory",
    )
    main_gpu: int = setting(
        0,
        "the GPU that is used where `SPLIT_MODE` is `none`; the first is 0",
        ge=0,
        lt=MOST_GPUS,
    )
    experts_on_cpu: int = setting(
        0,
        "of a [mixture of experts](devices.md#experts): the experts of this many layers, from the first one "
        "on, stay in main memory; -1: of all layers",
        ge=-1,
        le=MOST_LAYERS,
    )
    tensor_overrides: Annotated[str, _read_by(overrides_of)] = setting(
        "",
        "`pattern=DEVICE`, comma-separated: tensors whose names match the regular expression are put "
        "[there](devices.md#tensors-by-name)",
    )
    expert_ranks: Annotated[str, _read_by(ranks_of)] = setting(
        "",
        "of a [mixture of experts](devices.md#ranks-of-experts): `DEVICE=FIRST-LAST`, comma-separated, the "
        "layers whose experts are there; or `DEVICE` alone, of each that has an equal part of them",
    )
    rpc_servers: Annotated[str, _read_by(servers_of)] = setting(
        "",
        "`host:port`, comma-separated: [RPC servers](devices.md#layers-over-hosts) of ggml, which take "
        "layers of the models. Their protocol has no encryption and no keys: private networks only",
    )
    cuda_flash_attention: Switch = setting(
        "auto",
        "fused attention of models with layers on a GPU, of CUDA or another kind: `auto`, where the GPU has "
        "it for the model; `on`, and what the GPU does not have is computed on the CPU; `off`. "
        "`true` and `1` mean `on`, `false` and `0` mean `off`, in letters of any case",
        variable="INFERFLUX_CUDA_FLASH_ATTENTION",
    )
    kv_type_k: KvType = setting(
        "f16",
        "what the KV cache keeps keys in: a [quantized type](#quantized-kv-caches) takes less memory and is "
        "less exact",
    )
    kv_type_v: KvType = setting("f16", "the same for values; quantized ones turn the prefill context off")
    draft_model: OptionalPath = setting(
        None,
        "a small GGUF model of the same vocabulary, which [drafts](speculation.md) next tokens in the "
        "engine; unset or empty: there is none",
    )
    mmproj_path: OptionalPath = setting(
        None,
        "the GGUF file that encodes [images](images.md) for `MODEL_PATH`; unset or empty: it takes none",
    )
    chat_template: OptionalPath = setting(
        None,
        "a file whose [chat template](chat-templates.md) takes the place of `MODEL_PATH`'s own; unset or "
        "empty: its own",
    )
    speculation: Literal["off", "ngram", "draft"] = setting(
        "off",
        "where drafts of next tokens come from, for requests that leave it open: `ngram`, what followed the "
        "latest tokens where they occurred before; `draft`, `DRAFT_MODEL`; `off`, there are none",
    )
    max_itl_factor: float = setting(
        5.0,
        "prompts may lengthen the gap between a decode's tokens to this many times a step without any prompt",
        ge=1.0,
        le=1000,
    )
    step_limit_s: float = setting(
        0.2, "an engine step with prefill should take at most this long", gt=0, le=60
    )
    host_bytes: ByteCount = setting(
        2 << 30,
        "host memory for what leaves the KV cache: the state of preempted requests and of cached "
        "prefixes, of all models of a worker process together, and no more than they leave of "
        "`INFERFLUX_MODELS_BYTES`; beyond it the least used prefixes, then the least urgent requests, go to "
        "disk or are recomputed",
        ge=0,
        le=_MOST_INT64,
        ordinary=True,
    )
    host_eviction: Literal["lru", "clock"] = setting(
        "lru",
        "which cached prefixes leave host memory first: `lru`, those that were unused for the longest time; "
        "`clock`, those that were seldom used, which finds somewhat more where some prefixes stay popular",
    )
    disk_path: OptionalPath = setting(
        None,
        "folder for KV state that host memory has no room for; unset or empty: there is none. "
        "Workers of one model may share it: each takes a numbered folder in it for itself",
        ordinary=True,
    )
    disk_bytes: ByteCount = setting(
        4 << 30,
        "most bytes of files in `DISK_PATH`, of each worker; 0: there are none",
        ge=0,
        le=_MOST_INT64,
        ordinary=True,
    )
    disk_prompt_tokens: int = setting(
        0,
        "prompts of at least this many tokens are written to `DISK_PATH` once they are computed, so that a "
        "worker that goes on with them after a crash on this machine finds them there; 0: none are",
        ge=0,
        le=_MOST_INT32,
    )
    shm_bytes: ByteCount = setting(
        1 << 30,
        "most bytes of shared memory (`/dev/shm`) for the state of requests that another worker of this "
        "machine goes on with, after a crash, a drain or a move; up to half of it holds copies of host "
        "memory, of each engine, which one that is killed leaves to the next; 0: all is computed again. With "
        "`DISK_PATH` that folder is used instead",
        ge=0,
        le=_MOST_INT64,
    )
    load_limit_s: float = setting(
        600.0,
        "an engine that has not loaded its model and decoded with it by then is killed",
        gt=0,
        le=86400,
    )
    stuck_s: float = setting(
        60.0,
        "an engine that has requests to run and makes no step for this long is killed "
        "and started again; 0: never",
        ge=0,
    )

    @field_validator("id")
    @classmethod
    def _is_no_second_worker_of_a_host(cls, value: str) -> str:
        if hosts.is_member_id(value):
            raise ValueError("must not end in -- and a number: a host's further models are called so")
        return value

    @field_validator("sequences")
    @classmethod
    def _sequences_hold_the_slots(cls, value: int, info: ValidationInfo) -> int:
        if 0 < value < info.data.get("slots", 1):
            raise ValueError("must be 0 or at least INFERFLUX_WORKER_SLOTS")
        return value

    @field_validator("kv_bytes")
    @classmethod
    def _sized_once(cls, value: int, info: ValidationInfo) -> int:
        if value and info.data.get("kv_cells"):
            raise ValueError("must be 0 where INFERFLUX_WORKER_KV_CELLS is set: either sizes the KV cache")
        return value

    @field_validator("speculation")
    @classmethod
    def _a_draft_model_is_named(cls, value: str, info: ValidationInfo) -> str:
        if value == "draft" and info.data.get("draft_model") is None:
            raise ValueError("must not be draft where INFERFLUX_WORKER_DRAFT_MODEL is unset")
        return value

    @field_validator("null_workers")
    @classmethod
    def _many_have_null_engines(cls, value: int, info: ValidationInfo) -> int:
        if value > 1 and info.data.get("engine") != "null":
            raise ValueError("must be 1 unless INFERFLUX_WORKER_ENGINE is null")
        if value > 1 and len(str(info.data.get("id", ""))) + len(f"_{value - 1}") > hosts.LONGEST_HOST_ID:
            raise ValueError("leaves no room in INFERFLUX_WORKER_ID for the workers' numbers")
        return value

    @property
    def members(self) -> list[WorkerSettings]:
        """The settings of each worker in this process."""
        if self.null_workers == 1:
            return [self]
        return [self.model_copy(update={"id": f"{self.id}_{n}"}) for n in range(self.null_workers)]

    def sequences_for(self, slots: int) -> int:
        """Sequence ids of an engine: those that may run at once, in `slots`, and those beside them."""
        residents = min(2 * slots, MAX_SEQUENCES)
        # The prefill context needs one that is not used.
        cached = max(min(_CACHED_SEQUENCES, MAX_SEQUENCES - 1 - residents), 0) if self.prefix_cache else 0
        return max(self.sequences, slots) if self.sequences else residents + cached

    @property
    def device_wish(self) -> DeviceWish:
        """Where the tensors of all models are asked to go."""
        return DeviceWish(
            gpu_layers=self.gpu_layers,
            split_mode=self.split_mode,
            tensor_split=tensor_split_of(listed(self.tensor_split)),
            main_gpu=self.main_gpu,
            experts_on_cpu=self.experts_on_cpu,
            tensor_overrides=overrides_of(listed(self.tensor_overrides)),
            expert_ranks=ranks_of(listed(self.expert_ranks)),
            rpc_servers=servers_of(listed(self.rpc_servers)),
            gpu_flash_attention=self.cuda_flash_attention,
        )

    @property
    def all_sequences(self) -> int:
        """Sequence ids of the engine of a model that has the usual slots."""
        return self.sequences_for(self.slots)
