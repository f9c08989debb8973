"""Plan of the parts of a model that fit each device, by the head of its file (pure).

The layers go where llama.cpp's split by layers puts them. Of n layers on GPUs, the output layer among them,
the last n are taken. Each GPU gets as many of these, one after the other, as its part of the tensor split
says. A plan gives these parts as numbers of layers, so that none is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .fit import PHYSICAL_BATCH, CellShape, whole_cells
from .model_facts import ModelFacts
from .needs import PROCESS_BYTES, Asked, step_bytes, wanted_cells

_ALL = -1
# What a driver takes on a GPU before anything is loaded; an assumption.
DRIVER_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Part of a model on a device.

    Attributes:
        first_layer, layers: those it has, counted from 0; the output layer is one after the last.
        room: bytes it has for models; 0 where it is main memory and that is not known.
    """

    name: str
    room: int
    first_layer: int
    layers: int
    weights: int
    kv: int
    compute: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute

    @property
    def fits(self) -> bool:
        return self.total <= self.room or self.room == 0


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Attributes:
    cells: of the KV cache.
    layers: the output layer among them.
    gpu_layers: -1: all of them.
    tensor_split: layers of each GPU; empty for one GPU or none.
    experts_on_cpu: layers whose experts are in main memory; -1: all.
    devices: the GPUs, then main memory.
    fits: whether every device has room for its part.
    notes: why it is so, and what the plan does not know.
    """

    architecture: str
    size_bytes: int
    layers: int
    cells: int
    kv_bytes: int
    gpu_layers: int
    tensor_split: tuple[int, ...]
    experts_on_cpu: int
    devices: tuple[OnDevice, ...]
    fits: bool
    notes: tuple[str, ...]

    @property
    def settings(self) -> dict[str, str]:
        """The environment variables that ask for it."""
        found = {"INFERFLUX_WORKER_GPU_LAYERS": str(self.gpu_layers)}
        if self.tensor_split:
            found["INFERFLUX_WORKER_TENSOR_SPLIT"] = ",".join(map(str, self.tensor_split))
        if self.experts_on_cpu:
            found["INFERFLUX_WORKER_EXPERTS_ON_CPU"] = str(self.experts_on_cpu)
        return found


@dataclass(frozen=True, slots=True)
class _Costs:
    """Bytes of each layer, the output layer last; of experts and of keys and values as well."""

    weights: tuple[int, ...]
    experts: tuple[int, ...]
    kv: tuple[int, ...]
    compute: int

    def on_gpu(self, layer: int, experts_on_cpu: int) -> int:
        """Bytes that a layer takes on a GPU."""
        outside = self.experts[layer] if layer < experts_on_cpu else 0
        return self.weights[layer] - outside + self.kv[layer]


def plan_devices(
    architecture: str,
    size_bytes: int,
    trained_length: int,
    facts: ModelFacts,
    asked: Asked,
    gpus: Sequence[int],
    *,
    main_memory: int = 0,
    projector_bytes: int = 0,
) -> DevicePlan:
    """The plan that uses the GPUs most: all layers on them; else a mixture's experts of the first layers in
    main memory, as few as will do; else as many of the last layers as fit.

    Args:
        gpus: bytes of each GPU's memory.
        main_memory: bytes that models may take; 0: not known.
        projector_bytes: of the file that encodes images for it. libmtmd has it on the first GPU.
    """
    cells = whole_cells(wanted_cells(trained_length, facts, asked))
    costs = _costs(facts, asked, cells)
    n_layers = len(costs.weights)
    rooms = [max(gpu - DRIVER_BYTES, 0) for gpu in gpus]
    experts_on_cpu, counts = _place(costs, [max(room - projector_bytes, 0) for room in rooms[:1]] + rooms[1:])
    on_gpus = sum(counts)
    first = n_layers - on_gpus
    devices: list[OnDevice] = []
    for index, (count, room) in enumerate(zip(counts, rooms, strict=True)):
        mine = range(first, first + count)
        kv = sum(costs.kv[i] for i in mine)
        devices.append(
            OnDevice(
                name=f"GPU {index}",
                room=room,
                first_layer=first if count else 0,
                layers=count,
                weights=sum(costs.on_gpu(i, experts_on_cpu) for i in mine)
                - kv
                + (projector_bytes if index == 0 else 0),
                kv=kv,
                compute=costs.compute if count else 0,
            )
        )
        first += count
    memory = _in_main_memory(facts, costs, n_layers - on_gpus, experts_on_cpu, main_memory)
    devices.append(memory if gpus else replace(memory, weights=memory.weights + projector_bytes))
    with_experts = sum(1 for bytes_ in costs.experts if bytes_)
    return DevicePlan(
        architecture=architecture,
        size_bytes=size_bytes,
        layers=n_layers,
        cells=cells,
        kv_bytes=sum(costs.kv),
        gpu_layers=_ALL if gpus and on_gpus == n_layers else on_gpus,
        tensor_split=tuple(counts) if len(gpus) > 1 and on_gpus else (),
        experts_on_cpu=_ALL
        if experts_on_cpu and experts_on_cpu >= _last_with_experts(costs)
        else experts_on_cpu,
        devices=tuple(devices),
        fits=all(device.fits for device in devices),
        notes=tuple(
            _notes(facts, asked, devices, len(gpus), on_gpus, n_layers, with_experts and experts_on_cpu)
        )
        + _projector_notes(projector_bytes, len(gpus)),
    )


def _costs(facts: ModelFacts, asked: Asked, cells: int) -> _Costs:
    layers = range(len(facts.parts.layers))
    kept = [facts.kv_bytes_of_layer(layer, asked.types) * cells for layer in layers]
    # What llama.cpp keeps of each cell beside keys and values, as in `needs_of`.
    beside = cells * CellShape(0, PHYSICAL_BATCH).bytes
    return _Costs(
        weights=(*facts.parts.layers, facts.parts.output),
        experts=(*facts.parts.experts, 0),
        kv=(*kept, 0),
        compute=step_bytes(facts, cells) + beside,
    )


def _place(costs: _Costs, rooms: Sequence[int]) -> tuple[int, list[int]]:
    """(layers whose experts stay in main memory, layers of each GPU)."""
    n_layers = len(costs.weights)
    usable = [max(room - costs.compute, 0) for room in rooms]
    counts = _filled(costs, usable, 0, 0)
    if sum(counts) == n_layers:
        return 0, _evened(costs, usable, 0)
    last = _last_with_experts(costs)
    for experts_on_cpu in range(1, last + 1):
        counts = _filled(costs, usable, 0, experts_on_cpu)
        if sum(counts) == n_layers:
            return experts_on_cpu, counts
    for first in range(n_layers):
        counts = _filled(costs, usable, first, 0)
        if sum(counts) == n_layers - first:
            return 0, counts
    return 0, [0] * len(rooms)


def _filled(costs: _Costs, usable: Sequence[int], first: int, experts_on_cpu: int) -> list[int]:
    """Layers of each GPU, from `first` on: one GPU after the other as full as it gets."""
    counts = [0] * len(usable)
    layer = first
    for gpu, left in enumerate(usable):
        while layer < len(costs.weights) and (taken := costs.on_gpu(layer, experts_on_cpu)) <= left:
            left -= taken
            counts[gpu] += 1
            layer += 1
    return counts


def _evened(costs: _Costs, usable: Sequence[int], experts_on_cpu: int) -> list[int]:
    """The same where all fit: no GPU is fuller than it must be, as a part of its room. Found by halving."""
    full, least = 1.0, 0.0
    best = _filled(costs, usable, 0, experts_on_cpu)
    for _ in range(20):
        part = (full + least) / 2
        counts = _filled(costs, [int(room * part) for room in usable], 0, experts_on_cpu)
        if sum(counts) == len(costs.weights):
            full, best = part, counts
        else:
            least = part
    return best


def _last_with_experts(costs: _Costs) -> int:
    """One after the last layer that has experts; 0 where none has."""
    return max((i + 1 for i, n_bytes in enumerate(costs.experts) if n_bytes), default=0)


def _in_main_memory(
    facts: ModelFacts, costs: _Costs, layers: int, experts_on_cpu: int, room: int
) -> OnDevice:
    """The first `layers`, the embeddings, and experts of layers that are on GPUs."""
    has_output = layers == len(costs.weights)
    experts = sum(costs.experts[i] for i in range(layers, min(experts_on_cpu, len(costs.experts))))
    weights = sum(costs.weights[:layers]) + facts.parts.input + experts
    if has_output and facts.parts.shares_output:
        weights -= facts.parts.embedding  # not twice in one memory
    return OnDevice(
        name="main memory",
        room=room,
        first_layer=0,
        layers=layers,
        weights=weights,
        kv=sum(costs.kv[:layers]),
        compute=costs.compute + PROCESS_BYTES,
    )


@dataclass(slots=True)
class _Noted:
    lines: list[str] = field(default_factory=list)

    def note(self, line: str, *, when: object = True) -> None:
        if when:
            self.lines.append(line)


def _projector_notes(n_bytes: int, n_gpus: int) -> tuple[str, ...]:
    if not n_bytes:
        return ()
    where = "GPU 0, wherever the layers are" if n_gpus else "main memory"
    return (
        f"The projector is {n_bytes / (1 << 20):,.0f} MiB in {where}. What it encodes an image with is not "
        "counted.",
    )


def _notes(
    facts: ModelFacts,
    asked: Asked,
    devices: Sequence[OnDevice],
    n_gpus: int,
    on_gpus: int,
    n_layers: int,
    experts_on_cpu: int,
) -> list[str]:
    noted = _Noted()
    memory = devices[-1]
    noted.note(
        f"Estimates by the file's head, with {DRIVER_BYTES >> 20} MiB of each GPU left to its driver. What a "
        "loaded model takes is in `inferctl devices`."
    )
    noted.note(
        "No GPU holds a layer: the output layer comes first, and does not fit.", when=n_gpus and not on_gpus
    )
    noted.note(
        f"{n_layers - on_gpus} of {n_layers} layers are computed by the CPU. Each token waits for them.",
        when=0 < on_gpus < n_layers,
    )
    noted.note(
        "Experts in main memory are computed by the CPU; attention and what all tokens use stay on GPUs.",
        when=experts_on_cpu,
    )
    noted.note("Main memory has no room for its part.", when=not memory.fits)
    noted.note(
        "GPUs share the model by layers: they add up memory, and a token passes them one after the other.",
        when=n_gpus > 1,
    )
    noted.note(
        "For one token on several GPUs at once llama.cpp has SPLIT_MODE=tensor, which is experimental: it "
        "needs flash attention, f16, bf16 or f32 in the KV cache, and an architecture that has it. Its sums "
        "go over NCCL only where llama.cpp's CUDA build found NCCL. This plan does not compute it.",
        when=n_gpus > 1,
    )
    noted.note(
        "Which flash attention kernel runs is ggml's choice, by GPU, head size and types. FlashAttention 3 "
        "is not among them, and neither kernel nor tile can be set.",
        when=n_gpus,
    )
    noted.note(
        "A quantized KV cache needs flash attention for the values.", when=asked.types.value_type.is_quantized
    )
    noted.note(
        "Layers without keys and values keep a state for each sequence, which is not counted.",
        when=0 in facts.kv_heads or not facts.kv_heads,
    )
    noted.note("Layers that attend to a window alone are counted with all cells.", when=facts.has_window)
    return noted.lines
