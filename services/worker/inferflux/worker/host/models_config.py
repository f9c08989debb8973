"""The file of models: a YAML list of what a host knows from its start.

models:
  - path: chat.gguf        # relative to this file
    name: chat
    aliases: [default-chat]
    pinned: true           # loaded at the start, and never unloaded to make room
    default: true          # meant by requests that name no model
    context: 8192
    slots: 8
    mmproj: vision.gguf    # what encodes images for it
    chat_template: c.jinja # in place of the file's own
    role: generation       # or embedding, or rerank; by default as the file says
    adapters:              # LoRA files that requests choose: chat:formal
      - {name: formal, path: formal.gguf, scale: 1.0}
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from inferflux.common.contract.checks import MAX_SEQUENCES, check_model_name
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.hosts import MAX_ALIASES, MAX_KNOWN
from inferflux.common.contract.models.model_roles import ROLES, RoleName
from inferflux.common.contract.models.model_sources import model_name_of
from inferflux.common.contract.requests import adapters
from inferflux.common.process.config_file import VARIABLE, read_config
from inferflux.v1 import model_pb2
from inferflux.worker.files.device_wish import (
    MOST_GPUS,
    MOST_LAYERS,
    DeviceWish,
    SplitMode,
    Switch,
    overrides_of,
    servers_of,
    tensor_split_of,
)
from inferflux.worker.files.expert_ranks import ranks_of
from inferflux.worker.files.mmproj_file import read_projection

from .catalog import AdapterWish, Wish

_MOST_INT32 = 2**31 - 1
_T = TypeVar("_T")


def _model_name(name: str) -> str:
    try:
        check_model_name(name)
    except InvalidArgument as error:
        raise ValueError(error.message) from None
    return name


def _usable(read: Callable[[list[_T]], object]) -> Callable[[list[_T]], list[_T]]:
    """A check that `read` can read a list."""

    def check(given: list[_T]) -> list[_T]:
        read(given)
        return given

    return check


def _adapter_name(name: str) -> str:
    if not adapters.is_name(name):
        raise ValueError("an adapter's name is 1 to 64 of A-Z a-z 0-9 . _ -")
    return name


def _scale(scale: float) -> float:
    try:
        adapters.check_scale(scale, "scale")
    except InvalidArgument as error:
        raise ValueError(error.message) from None
    return scale


def _printable(path: str) -> str:
    if not path.isprintable():
        raise ValueError("a path here is of printable characters")
    return path


_Name = Annotated[str, Field(min_length=1), AfterValidator(_model_name)]
_Path = Annotated[str, Field(min_length=1), AfterValidator(_printable)]


class _Adapter(BaseModel):
    """One of a model's `adapters`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, AfterValidator(_adapter_name)]
    path: _Path
    scale: Annotated[float, AfterValidator(_scale)] = 1.0


class _Entry(BaseModel):
    """One of `models`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    path: _Path
    name: _Name | None = None
    aliases: list[_Name] = Field(default=[], max_length=MAX_ALIASES)
    pinned: bool = False
    default: bool = False
    context: int | None = Field(default=None, ge=1, le=_MOST_INT32)
    slots: int | None = Field(default=None, ge=1, le=MAX_SEQUENCES)
    kv_cells: int | None = Field(default=None, ge=1, le=_MOST_INT32)
    kv_bytes: int | None = Field(default=None, ge=1)
    gpu_layers: int | None = Field(default=None, ge=-1, le=_MOST_INT32)
    split_mode: SplitMode | None = None
    tensor_split: Annotated[list[float], AfterValidator(_usable(tensor_split_of))] | None = None
    main_gpu: int | None = Field(default=None, ge=0, lt=MOST_GPUS)
    experts_on_cpu: int | None = Field(default=None, ge=-1, le=MOST_LAYERS)
    tensor_overrides: Annotated[list[str], AfterValidator(_usable(overrides_of))] | None = None
    expert_ranks: Annotated[list[str], AfterValidator(_usable(ranks_of))] | None = None
    rpc_servers: Annotated[list[str], AfterValidator(_usable(servers_of))] | None = None
    gpu_flash_attention: Switch | None = None
    mmproj: _Path | None = None
    chat_template: _Path | None = None
    role: RoleName | None = None
    deterministic: bool | None = None
    adapters: list[_Adapter] = Field(default=[], max_length=adapters.MAX_ADAPTERS)

    @model_validator(mode="after")
    def _sized_once(self) -> Self:
        if self.kv_cells is not None and self.kv_bytes is not None:
            raise ValueError("kv_cells and kv_bytes: either sizes the KV cache")
        names = [adapter.name for adapter in self.adapters]
        if len(set(names)) < len(names):
            raise ValueError("two adapters have one name")
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore")

    models: list[_Entry] = Field(default=[], max_length=MAX_KNOWN)


def read_models(path: Path) -> list[tuple[Path, Wish]]:
    """The model files that a configuration names, and how each is to be served.

    Raises:
        InvalidArgument: the file cannot be read, or says what cannot be; names the entry.
    """
    parsed = read_config(path, _File)
    wished = [
        (path.parent / entry.path, _wish(entry, path, place=f"models[{i}]"))
        for i, entry in enumerate(parsed.models)
    ]
    names = [wish.name for _, wish in wished]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"{path}: two models are called {name!r}", field=VARIABLE)
    if sum(wish.is_default for _, wish in wished) > 1:
        raise InvalidArgument(f"{path}: more than one model is the default", field=VARIABLE)
    return wished


def _wish(entry: _Entry, path: Path, *, place: str) -> Wish:
    """Wish of an entry at a place of the file at `path`."""
    folder, mmproj = path.parent, None
    if entry.mmproj is not None:
        try:
            mmproj = read_projection(folder / entry.mmproj, field=VARIABLE)
        except InvalidArgument as error:
            raise InvalidArgument(f"{path}: {place}.mmproj: {error.message}", field=VARIABLE) from None
    return Wish(
        name=entry.name or model_name_of(Path(entry.path).name),
        aliases=tuple(entry.aliases),
        is_pinned=entry.pinned,
        is_default=entry.default,
        context_length=entry.context,
        slots=entry.slots,
        kv_cells=entry.kv_cells,
        kv_bytes=entry.kv_bytes,
        devices=DeviceWish(
            gpu_layers=entry.gpu_layers,
            split_mode=entry.split_mode,
            tensor_split=None if entry.tensor_split is None else tensor_split_of(entry.tensor_split),
            main_gpu=entry.main_gpu,
            experts_on_cpu=entry.experts_on_cpu,
            tensor_overrides=None if entry.tensor_overrides is None else overrides_of(entry.tensor_overrides),
            expert_ranks=None if entry.expert_ranks is None else ranks_of(entry.expert_ranks),
            rpc_servers=None if entry.rpc_servers is None else servers_of(entry.rpc_servers),
            gpu_flash_attention=entry.gpu_flash_attention,
        ),
        mmproj=mmproj,
        chat_template=None if entry.chat_template is None else folder / entry.chat_template,
        is_deterministic=entry.deterministic,
        role=ROLES[entry.role] if entry.role else model_pb2.MODEL_ROLE_UNSPECIFIED,
        adapters=tuple(
            AdapterWish(adapter.name, (folder / adapter.path).resolve(), adapter.scale)
            for adapter in entry.adapters
        ),
    )
