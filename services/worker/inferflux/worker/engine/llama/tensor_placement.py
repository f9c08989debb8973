"""Placement of a model's tensors: llama.cpp's parameters for what was asked, and the devices they went to."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from inferflux.common.contract.messages.heartbeats import MAX_DEVICES, MAX_TEXT_BYTES
from inferflux.common.llama.native import llama
from inferflux.v1 import device_pb2, engine_pb2
from inferflux.worker.files.expert_ranks import MOST_RANKS, ExpertDispatch, ExpertRank

from .devices import FoundDevice
from .pinned_load_log import LoadLog

_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_RANKS = "INFERFLUX_WORKER_EXPERT_RANKS"
_ALL_LAYERS = -1
_OF_SEVERAL = device_pb2.DEVICE_KIND_GROUP
_CPU = "CPU"
# Of what llama.cpp makes of several GPUs for the split mode tensor, and names so.
_GROUP = "Meta"
# Main memory under another name: pinned for a GPU, or laid out anew for the CPU's vectors.
_HOST_BUFFER = re.compile(r"^CPU(_|$)|_Host$")
_MOST_WARNINGS = 8


class PlacementError(Exception):
    """Error of a placement that cannot be with these devices; names the setting."""


class Placement:
    """Placement asked for a model's tensors, on the devices that are there.

    Attributes:
        offloads: whether layers go to a GPU.
        offloads_here: whether to one of this machine.
        warnings: what was asked for and cannot be without a GPU.

    Raises:
        PlacementError: a device that was named is not there, or there are fewer than were counted on.
    """

    def __init__(self, config: engine_pb2.EngineConfig, devices: Sequence[FoundDevice]) -> None:
        self._asked = config.placement
        self._gpu_layers = config.gpu_layers
        self._devices = devices
        self._gpus = [device for device in devices if device.is_gpu]
        self.offloads = bool(self._gpus) and config.gpu_layers != 0
        self.offloads_here = self.offloads and not all(gpu.is_remote for gpu in self._gpus)
        self.warnings = [] if self._gpus else self._missed()
        # llama.cpp reads these when the model is loaded.
        self._kept: list[Any] = []
        if self._gpus:
            self._check()
        self._experts = self._dispatch()
        self._overrides = self._buffer_types()

    def _missed(self) -> list[str]:
        asked = self._asked
        told = {
            f"INFERFLUX_WORKER_GPU_LAYERS is {self._gpu_layers}": self._gpu_layers > 0,
            f"INFERFLUX_WORKER_SPLIT_MODE is {asked.split_mode}": asked.split_mode not in ("", "layer"),
            "INFERFLUX_WORKER_TENSOR_SPLIT is set": bool(asked.tensor_split),
            f"INFERFLUX_WORKER_MAIN_GPU is {asked.main_gpu}": asked.main_gpu > 0,
        }
        return [
            f"{what}, and llama.cpp finds no GPU: the model runs on the CPU"
            for what, is_so in told.items()
            if is_so
        ]

    def _check(self) -> None:
        asked, names = self._asked, ", ".join(device.name for device in self._gpus)
        there = f"there are {len(self._gpus)} GPUs: {names}"
        if len(asked.tensor_split) > len(self._gpus):
            raise PlacementError(
                f"INFERFLUX_WORKER_TENSOR_SPLIT has {len(asked.tensor_split)} parts, and {there}"
            )
        if asked.main_gpu >= len(self._gpus):
            raise PlacementError(f"INFERFLUX_WORKER_MAIN_GPU is {asked.main_gpu}, and {there}")

    def _buffer_types(self) -> list[tuple[str, int]]:
        """(pattern, buffer type) of each override, in order."""
        found: list[tuple[str, int]] = []
        by_name = {device.name.lower(): device for device in self._devices}
        for override in self._asked.tensor_overrides:
            device = by_name.get(override.device.lower())
            if device is not None and device.buffer_type:
                found.append((override.pattern, device.buffer_type))
                continue
            said = f"INFERFLUX_WORKER_TENSOR_OVERRIDES names the device {override.device}"
            if self._gpus:
                raise PlacementError(f"{said}, and there are {', '.join(d.name for d in self._devices)}")
            self.warnings.append(f"{said}, and llama.cpp finds no GPU: its tensors are in main memory")
        for i, rank in enumerate(self._experts.ranks):
            buffer_type = self._rank_device(rank.device).buffer_type
            layers_of_rank = "|".join(map(str, self._experts.layers_of(i)))
            found.append((rf"^blk\.({layers_of_rank}){_EXPERTS}", buffer_type))
        layers = self._asked.experts_on_cpu
        cpu = by_name.get(_CPU.lower())
        if self._gpus and layers and cpu is not None:  # the CPU alone has better places for them
            if layers == _ALL_LAYERS:
                found.append((_EXPERTS, cpu.buffer_type))
            found += [(rf"blk\.{i}{_EXPERTS}", cpu.buffer_type) for i in range(layers)]
        return found

    def _dispatch(self) -> ExpertDispatch:
        """Ranks that the model's experts are to have: none where it is no mixture, or nothing but the CPU is
        there."""
        asked = [
            ExpertRank(one.device, (one.first_layer, one.last_layer) if one.HasField("last_layer") else None)
            for one in self._asked.expert_ranks
        ]
        layers = [i for i, n_tensors in enumerate(self._asked.expert_tensors) if n_tensors]
        if asked and not self._gpus:
            self.warnings.append(f"{_RANKS} is set, and llama.cpp finds no GPU: experts are in main memory")
        if not self._gpus or not layers:
            asked = []
        if asked and self._asked.split_mode == "tensor":
            raise PlacementError(
                f"{_RANKS} is set, and INFERFLUX_WORKER_SPLIT_MODE is tensor: a GPU has a part of each"
            )
        try:
            return ExpertDispatch(asked, layers, self._asked.n_experts)
        except ValueError as error:
            raise PlacementError(f"{_RANKS} {error}") from None

    def _rank_device(self, wanted: str) -> FoundDevice:
        """The device that a rank names, or the one that the RPC server of this address lends.

        Raises:
            PlacementError: the model uses none, or several of it.
        """
        gpus = self._gpus
        if self._asked.split_mode == "none":
            gpus = gpus[self._asked.main_gpu :][:1]
        usable = [*gpus, *(device for device in self._devices if device.name.upper() == _CPU)]
        found = [
            device
            for device in usable
            if wanted.lower() in (device.name.lower(), device.is_remote and device.description.lower())
        ]
        if len(found) != 1:
            names = ", ".join(device.name for device in found or usable)
            which = "which lends" if found else "and the model uses"
            raise PlacementError(f"{_RANKS} names the device {wanted}, {which} {names}")
        return found[0]

    def found_ranks(self, log: LoadLog) -> list[device_pb2.ExpertPlacement]:
        """Report where the experts of each layer went, by llama.cpp's log; empty where it is no mixture.

        Layers that are not where a rank was asked to have them are a warning.
        """
        found: list[device_pb2.ExpertPlacement] = []
        elsewhere: list[str] = []
        by_name = {device.name: device for device in self._devices}
        for layer, n_tensors in enumerate(self._asked.expert_tensors):
            if not n_tensors or layer not in log.device_of:
                continue
            moved = [self._name_of(buffer) for buffer in log.moved_experts[layer].values()]
            names = {*moved, *([log.device_of[layer]] if len(moved) < n_tensors else [])}
            name = "+".join(sorted(names))
            owner = self._experts.owner_of(layer, 0)
            if owner is not None and self._rank_device(self._experts.ranks[owner].device).name != name:
                elsewhere.append(str(layer))
            if found and found[-1].device == _short(name):
                found[-1].last_layer = layer
                continue
            # A group of GPUs is none of the devices.
            on = [by_name[each] for each in sorted(names) if each in by_name] or self._gpus
            kinds = {device.kind for device in on}
            several = device_pb2.DEVICE_KIND_CPU if device_pb2.DEVICE_KIND_CPU in kinds else _OF_SEVERAL
            found.append(
                device_pb2.ExpertPlacement(
                    device=_short(name),
                    kind=on[0].kind if len(on) == 1 else several,
                    endpoint=next((device.description for device in on if device.is_remote), ""),
                    first_layer=layer,
                    last_layer=layer,
                )
            )
        if elsewhere:
            layers = ", ".join(elsewhere)
            self.warnings.append(f"{_RANKS} does not hold for layers {layers}: tensor overrides come first")
        return found[:MOST_RANKS]

    def _name_of(self, buffer: str) -> str:
        """Name of the device that a buffer type belongs to."""
        return next(iter(_by_device(Counter({buffer: 1}), self._devices)))

    def flash_attention(self, config: engine_pb2.EngineConfig) -> bool | None:
        """Setting of a context's flash attention; None leaves it to llama.cpp, which knows what the GPU
        has."""
        if not config.flash_attention or not self.offloads:
            return config.flash_attention
        return {"on": True, "off": False}.get(self._asked.gpu_flash_attention)

    def apply(self, params: Any) -> None:
        """Set what was asked for in a `llama_model_params`."""
        asked = self._asked
        params.n_gpu_layers = self._gpu_layers
        if self._gpus:
            params.split_mode = _SPLIT_MODES[asked.split_mode or "layer"]
            params.main_gpu = asked.main_gpu
        if self._gpus and asked.tensor_split:
            parts = (ctypes.c_float * int(llama.llama_max_devices()))(*asked.tensor_split)
            self._kept.append(parts)
            params.tensor_split = ctypes.cast(parts, ctypes.POINTER(ctypes.c_float))
        if self._overrides:
            rows = (_Override * (len(self._overrides) + 1))()
            for row, (pattern, buffer_type) in zip(rows, self._overrides, strict=False):
                row.pattern, row.buffer_type = pattern.encode(), buffer_type
            self._kept.append(rows)
            params.tensor_buft_overrides = ctypes.cast(rows, ctypes.c_void_p)

    def keep_local(self, params: Any) -> None:
        """Have a model use no RPC server: a draft model would wait for the network at each token."""
        if any(device.is_remote for device in self._devices):
            local = [device.handle for device in self._gpus if not device.is_remote]
            handles = (ctypes.c_void_p * (len(local) + 1))(*local)
            self._kept.append(handles)
            params.devices = ctypes.cast(handles, ctypes.c_void_p)

    def report(
        self, log: LoadLog, config: engine_pb2.EngineConfig, *, flash_attention: bool
    ) -> device_pb2.DeviceContext:
        """Report where the tensors went, by llama.cpp's log.

        Args:
            flash_attention: whether the main context uses it.
        """
        weights, kv = _by_device(log.weights, self._devices), _by_device(log.kv, self._devices)
        computes = _by_device(Counter({n: log.compute_on(n) for n in {*log.compute, *log.kv}}), self._devices)
        devices = [
            device_pb2.Device(
                name=device.name,
                description=_short(device.description),
                backend=device.backend,
                kind=device.kind,
                memory_free_bytes=device.memory_free,
                memory_total_bytes=device.memory_total,
                endpoint=device.description if device.is_remote else "",
                layers=log.layers[device.name],
                weights_bytes=weights[device.name],
                kv_bytes=kv[device.name],
                compute_bytes=computes[device.name],
            )
            for device in self._devices
            if device.kind
        ]
        known = {device.name for device in self._devices}
        groups = [
            device_pb2.Device(
                name=_short(name),
                description=_short(", ".join(device.name for device in self._gpus)),
                backend=_GROUP,
                kind=device_pb2.DEVICE_KIND_GROUP,
                layers=layers,
                weights_bytes=weights[name],
                kv_bytes=kv[name],
                compute_bytes=computes[name],
            )
            for name, layers in log.layers.items()
            if name not in known
        ]
        wanted = config.flash_attention and self._asked.gpu_flash_attention != "off"
        reason = ""
        if flash_attention != (wanted if self.offloads else config.flash_attention):
            reason = log.flash_attention_reason or "llama.cpp chose otherwise"
        return device_pb2.DeviceContext(
            devices=devices[: MAX_DEVICES - len(groups)] + groups,
            flash_attention=flash_attention,
            flash_attention_reason=_short(reason),
            layers=log.layers.total(),
            gpu_layers=sum(group.layers for group in groups)
            + sum(log.layers[device.name] for device in self._gpus),
            warnings=[_short(warning) for warning in self.warnings[:_MOST_WARNINGS]],
        )


class _Override(ctypes.Structure):
    """struct llama_model_tensor_buft_override"""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _short(text: str) -> str:
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def _by_device(buffers: Counter[str], devices: Sequence[FoundDevice]) -> Counter[str]:
    """Bytes by the device's name, of bytes by the buffer type's."""
    names = {device.buffer_name: device.name for device in devices if device.is_gpu}
    found: Counter[str] = Counter()
    for buffer, n_bytes in buffers.items():
        found[names.get(buffer, _CPU if _HOST_BUFFER.search(buffer) else buffer)] += n_bytes
    return found
