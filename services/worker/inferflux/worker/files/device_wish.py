"""Devices on which a model's tensors are wanted: from settings, and from a file of models (pure)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import BeforeValidator

from inferflux.common.contract import address
from inferflux.v1 import device_pb2

from .expert_ranks import ExpertRank

SplitMode = Literal["none", "layer", "row", "tensor"]

_SWITCHES = {"true": "on", "1": "on", "on": "on", "false": "off", "0": "off", "off": "off", "auto": "auto"}


def _as_switch(value: object) -> object:
    """YAML makes a bool of on and off."""
    return _SWITCHES.get(str(value).strip().lower(), value)


Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_as_switch)]

# ggml's own bound: GGML_RPC_MAX_SERVERS.
MOST_RPC_SERVERS = 16
MOST_GPUS = 16
# Each is a pattern that llama.cpp tries on every tensor.
MOST_LAYERS = 1024
_MOST_OVERRIDES = 64
_LONGEST_PATTERN = 200
_DEVICE = re.compile(r"[A-Za-z0-9_.:\[\]-]{1,64}")


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """Devices wanted for a model's tensors; None leaves a field to what was asked before.

    Attributes:
        gpu_layers: layers on GPUs; -1: all.
        tensor_split: what part of the model each GPU gets.
        main_gpu: the one that is used where `split_mode` is none.
        experts_on_cpu: layers whose experts stay in main memory; -1: all.
        tensor_overrides: (pattern, device): the first pattern that a tensor's name matches counts.
        expert_ranks: devices of the experts of whole layers; after `tensor_overrides`.
        rpc_servers: host:port.
        gpu_flash_attention: of contexts with layers on a GPU.
    """

    gpu_layers: int | None = None
    split_mode: SplitMode | None = None
    tensor_split: tuple[float, ...] | None = None
    main_gpu: int | None = None
    experts_on_cpu: int | None = None
    tensor_overrides: tuple[tuple[str, str], ...] | None = None
    expert_ranks: tuple[ExpertRank, ...] | None = None
    rpc_servers: tuple[str, ...] | None = None
    gpu_flash_attention: Switch | None = None

    def then(self, later: DeviceWish) -> DeviceWish:
        """This with what a later wish says."""
        said = {field.name: getattr(later, field.name) for field in fields(self)}
        kept = {field.name: getattr(self, field.name) for field in fields(self)}
        return DeviceWish(**kept | {name: value for name, value in said.items() if value is not None})

    @property
    def is_all_remote(self) -> bool:
        """True if every layer goes to RPC servers, where no GPU of this machine takes some."""
        has_experts_here = self.experts_on_cpu or any(
            r.device.upper() == "CPU" for r in self.expert_ranks or ()
        )
        return bool(self.rpc_servers) and self.gpu_layers in (None, -1) and not has_experts_here

    def to_message(self) -> device_pb2.DevicePlacement:
        return device_pb2.DevicePlacement(
            split_mode=self.split_mode or "",
            tensor_split=self.tensor_split or (),
            main_gpu=self.main_gpu or 0,
            experts_on_cpu=self.experts_on_cpu or 0,
            tensor_overrides=[
                device_pb2.TensorOverride(pattern=pattern, device=device)
                for pattern, device in self.tensor_overrides or ()
            ],
            expert_ranks=[
                device_pb2.ExpertPlacement(
                    device=rank.device,
                    first_layer=rank.layers[0] if rank.layers else None,
                    last_layer=rank.layers[1] if rank.layers else None,
                )
                for rank in self.expert_ranks or ()
            ],
            rpc_servers=self.rpc_servers or (),
            gpu_flash_attention=self.gpu_flash_attention or "",
        )


NO_WISH = DeviceWish()


def tensor_split_of(parts: Iterable[float | str]) -> tuple[float, ...]:
    """Raises ValueError where these are no parts of a model."""
    found: list[float] = []
    for part in parts:
        try:
            number = float(part)
        except ValueError:
            raise ValueError(f"{part!r} is no number: it must be parts such as 3,1") from None
        if not math.isfinite(number) or number < 0:
            raise ValueError(f"{part} is no part: each must be 0 or more")
        found.append(number)
    if len(found) > MOST_GPUS:
        raise ValueError(f"must have at most {MOST_GPUS} parts")
    if found and not any(found):
        raise ValueError("must have a part above 0")
    return tuple(found)


def overrides_of(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """(pattern, device) of each `pattern=DEVICE`.

    Raises:
        ValueError: one is none, or its pattern is no regular expression.
    """
    found: list[tuple[str, str]] = []
    for one in given:
        pattern, _, device = one.rpartition("=")
        if not pattern or not _DEVICE.fullmatch(device):
            raise ValueError(f"{one!r} is not pattern=DEVICE")
        if len(pattern) > _LONGEST_PATTERN or not pattern.isascii():
            raise ValueError(f"a pattern has at most {_LONGEST_PATTERN} ASCII characters")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        found.append((pattern, device))
    if len(found) > _MOST_OVERRIDES:
        raise ValueError(f"must have at most {_MOST_OVERRIDES}")
    return tuple(found)


def servers_of(given: Iterable[str]) -> tuple[str, ...]:
    """Raises ValueError where one is not host:port, or is named twice. ggml takes no IPv6 address."""
    found = tuple(given)
    for server in found:
        host, _, port = server.rpartition(":")
        if not address.is_address(server) or not host or ":" in host or int(port) == 0:
            raise ValueError(f"{server!r} is not host:port, with a name or an IPv4 address")
        if found.count(server) > 1:
            raise ValueError(f"{server} is named twice")
    if len(found) > MOST_RPC_SERVERS:
        raise ValueError(f"must be at most {MOST_RPC_SERVERS}")
    return found
