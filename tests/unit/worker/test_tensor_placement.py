"""Where tensors go, for devices that are there and that are not."""

from __future__ import annotations

from typing import Any

import pytest

from inferflux.common.llama.native import llama
from inferflux.v1 import device_pb2, engine_pb2
from inferflux.worker.engine.llama.devices import FoundDevice
from inferflux.worker.engine.llama.pinned_load_log import LoadLog
from inferflux.worker.engine.llama.tensor_placement import Placement, PlacementError

MIB = 1 << 20


def device(
    name: str,
    kind: device_pb2.DeviceKind.ValueType = device_pb2.DEVICE_KIND_GPU,
    *,
    backend: str = "CUDA",
    buffer_name: str = "",
    handle: int = 1,
) -> FoundDevice:
    return FoundDevice(
        name=name,
        description="10.0.0.2:50061" if backend == "RPC" else "a device",
        backend=backend,
        kind=kind,
        memory_free=10 * MIB,
        memory_total=20 * MIB,
        handle=handle,
        buffer_type=handle,
        buffer_name=buffer_name or name,
    )


CPU = device("CPU", device_pb2.DEVICE_KIND_CPU, backend="CPU")
CUDA = device("CUDA0", handle=2)
REMOTE = device("RPC0", backend="RPC", buffer_name="RPC0[10.0.0.2:50061]", handle=3)


def placed(*devices: FoundDevice, gpu_layers: int = -1, flash: bool = True, **asked: Any) -> Placement:
    return Placement(config(gpu_layers=gpu_layers, flash=flash, **asked), devices)


def config(*, gpu_layers: int = -1, flash: bool = True, **asked: Any) -> engine_pb2.EngineConfig:
    return engine_pb2.EngineConfig(
        gpu_layers=gpu_layers, flash_attention=flash, placement=device_pb2.DevicePlacement(**asked)
    )


def override(pattern: str, name: str) -> device_pb2.TensorOverride:
    return device_pb2.TensorOverride(pattern=pattern, device=name)


def test_layers_go_to_a_gpu_where_there_is_one_and_they_are_asked_for() -> None:
    assert placed(CPU, CUDA).offloads
    assert not placed(CPU, CUDA, gpu_layers=0).offloads
    assert not placed(CPU).offloads
    here = [placed(*devices).offloads_here for devices in ((CPU,), (REMOTE, CPU), (REMOTE, CUDA, CPU))]
    assert here == [False, False, True]


def test_what_was_asked_of_gpus_that_are_not_there_is_a_warning() -> None:
    assert placed(CPU).warnings == []
    assert placed(CPU, gpu_layers=0, split_mode="layer", experts_on_cpu=-1).warnings == []
    warned = placed(
        CPU,
        gpu_layers=3,
        split_mode="row",
        tensor_split=[1, 1],
        main_gpu=2,
        tensor_overrides=[override("a", "CUDA0"), override("b", "cpu")],
    ).warnings
    assert len(warned) == 5
    assert all("finds no GPU" in line for line in warned)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tensor_split": [1, 1]}, "TENSOR_SPLIT has 2 parts, and there are 1 GPUs: CUDA0"),
        ({"main_gpu": 1}, "MAIN_GPU is 1, and there are 1 GPUs: CUDA0"),
        ({"tensor_overrides": [override("a", "CUDA1")]}, "names the device CUDA1, and there are CPU, CUDA0"),
    ],
)
def test_devices_that_were_counted_on_are_refused_by_the_settings_name(
    asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlacementError, match=said) as caught:
        placed(CPU, CUDA, **asked)
    assert str(caught.value).startswith("INFERFLUX_WORKER_")


def test_llama_cpp_gets_what_was_asked() -> None:
    params = llama.llama_model_default_params()
    placement = placed(
        CPU,
        CUDA,
        REMOTE,
        gpu_layers=7,
        split_mode="none",
        main_gpu=1,
        tensor_split=[3, 1],
        tensor_overrides=[override("first", "RPC0")],
        experts_on_cpu=2,
    )
    placement.apply(params)
    assert (params.n_gpu_layers, params.split_mode, params.main_gpu) == (7, 0, 1)
    assert params.tensor_split[:2] == [3, 1]
    assert params.tensor_buft_overrides
    before = params.devices
    placement.keep_local(params)
    assert params.devices
    assert not before


def test_without_a_gpu_llama_cpp_gets_the_layers_alone() -> None:
    params, usual = llama.llama_model_default_params(), llama.llama_model_default_params()
    placement = placed(CPU, gpu_layers=5, tensor_split=[1], main_gpu=1, split_mode="none", experts_on_cpu=-1)
    placement.apply(params)
    placement.keep_local(params)
    assert (params.n_gpu_layers, params.main_gpu, params.split_mode) == (5, usual.main_gpu, usual.split_mode)
    assert not params.tensor_buft_overrides
    assert not params.devices


@pytest.mark.parametrize(
    ("gpu_layers", "flash", "switch", "expected"),
    [
        (-1, True, "", None),
        (-1, True, "auto", None),
        (-1, True, "on", True),
        (-1, True, "off", False),
        (-1, False, "on", False),
        (0, True, "off", True),
    ],
)
def test_flash_attention_of_a_gpu_has_a_switch_of_its_own(
    gpu_layers: int, flash: bool, switch: str, expected: bool | None
) -> None:
    asked = config(gpu_layers=gpu_layers, flash=flash, gpu_flash_attention=switch)
    assert Placement(asked, [CPU, CUDA]).flash_attention(asked) is expected


def rank(name: str, *layers: int) -> device_pb2.ExpertPlacement:
    first, last = layers or (None, None)
    return device_pb2.ExpertPlacement(device=name, first_layer=first, last_layer=last)


def mixture(*ranks: device_pb2.ExpertPlacement, layers: int = 4, **asked: Any) -> engine_pb2.EngineConfig:
    """The first layer has no experts."""
    return config(
        expert_ranks=ranks, expert_tensors=[0, *[3] * (layers - 1)] if layers else [], n_experts=8, **asked
    )


def logged(*lines: str, layers: int = 4, on: str = "CUDA0") -> LoadLog:
    log = LoadLog()
    for i in range(layers):
        log.take(f"load_tensors: layer {i:3} assigned to device {on}, is_swa = 0")
    for line in lines:
        log.take(line)
    return log


def moved(layer: int, buffer: str, *parts: str) -> list[str]:
    return [
        f"tensor blk.{layer}.ffn_{part}_exps.weight (12 MiB q4_K) buffer type overridden to {buffer}"
        for part in parts or ("gate", "up", "down")
    ]


DEVICES = [REMOTE, CUDA, CPU]


def test_where_experts_are_is_read_from_the_log() -> None:
    asked = mixture()
    lines = [
        *moved(1, "RPC0[10.0.0.2:50061]"),
        *moved(2, "RPC0[10.0.0.2:50061]"),
        *moved(3, "CUDA_Host", "up"),
    ]
    remote, both = Placement(asked, DEVICES).found_ranks(logged(*lines))
    assert (remote.device, remote.endpoint, remote.kind) == (
        "RPC0",
        REMOTE.description,
        device_pb2.DEVICE_KIND_GPU,
    )
    assert (remote.first_layer, remote.last_layer) == (1, 2)
    assert (both.device, both.first_layer, both.last_layer) == ("CPU+CUDA0", 3, 3)
    assert (both.kind, both.endpoint) == (device_pb2.DEVICE_KIND_CPU, "")
    second = device("CUDA1", handle=5)
    (group,) = Placement(asked, [CUDA, second, CPU]).found_ranks(logged(on="Meta"))
    assert (group.device, group.kind, group.endpoint) == ("Meta", device_pb2.DEVICE_KIND_GROUP, "")
    (alone,) = Placement(asked, [CPU]).found_ranks(logged(on="CPU"))
    assert (alone.device, alone.kind, alone.first_layer) == ("CPU", device_pb2.DEVICE_KIND_CPU, 1)
    assert Placement(mixture(layers=0), DEVICES).found_ranks(logged()) == []


def test_ranks_that_overrides_come_before_are_a_warning() -> None:
    asked = mixture(rank("10.0.0.2:50061", 1, 2), rank("CPU", 3, 3))
    placement = Placement(asked, DEVICES)
    lines = [*moved(1, "RPC0[10.0.0.2:50061]"), *moved(2, "CUDA0"), *moved(3, "CPU")]
    assert len(placement.found_ranks(logged(*lines))) == 3
    (warning,) = placement.warnings
    assert warning.startswith("INFERFLUX_WORKER_EXPERT_RANKS does not hold for layers 2:")


@pytest.mark.parametrize(
    ("ranks", "asked", "said"),
    [
        ([rank("CUDA1", 1, 2)], {}, "names the device CUDA1, and the model uses RPC0, CUDA0, CPU"),
        ([rank("CUDA0", 1, 4)], {}, "has CUDA0=1-4, and the model's experts are in layers 1-3"),
        (
            [rank("RPC0", 1, 2)],
            {"split_mode": "none", "main_gpu": 1},
            "names the device RPC0, and the model uses CUDA0",
        ),
        ([rank("CUDA0")], {"split_mode": "tensor"}, "SPLIT_MODE is tensor"),
    ],
)
def test_ranks_that_the_devices_or_the_model_do_not_have_are_refused(
    ranks: list[device_pb2.ExpertPlacement], asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlacementError, match=said) as caught:
        Placement(mixture(*ranks, **asked), DEVICES)
    assert str(caught.value).startswith("INFERFLUX_WORKER_EXPERT_RANKS")


def test_a_server_of_several_devices_does_not_name_one() -> None:
    other = device("RPC1", backend="RPC", buffer_name="RPC1[10.0.0.2:50061]", handle=4)
    with pytest.raises(PlacementError, match="which lends RPC0, RPC1"):
        Placement(mixture(rank("10.0.0.2:50061")), [REMOTE, other, CPU])


def test_ranks_without_a_gpu_are_a_warning_and_of_no_mixture_nothing() -> None:
    alone = Placement(mixture(rank("CUDA0", 1, 3)), [CPU])
    assert ["finds no GPU" in warning for warning in alone.warnings] == [True]
    assert Placement(mixture(rank("CUDA7", 1, 3), layers=0), DEVICES).warnings == []


def test_what_llama_cpp_logged_is_told_by_device() -> None:
    log = LoadLog()
    for line in (
        "load_tensors: layer   0 assigned to device CPU, is_swa = 0",
        "load_tensors: layer   1 assigned to device RPC0, is_swa = 0",
        "load_tensors: layer   2 assigned to device CUDA0, is_swa = 0",
        "load_tensors:   CPU_Mapped model buffer size =     1.00 MiB",
        "load_tensors:    CUDA_Host model buffer size =     2.00 MiB",
        "load_tensors:        CUDA0 model buffer size =     3.00 MiB",
        "load_tensors: RPC0[10.0.0.2:50061] model buffer size =     4.00 MiB",
        "llama_kv_cache:      CUDA0 KV buffer size =     5.00 MiB",
        "sched_reserve:  CUDA_Host compute buffer size =     6.00 MiB",
        "resolve_fused_ops: Flash Attention not supported, set to disabled",
    ):
        log.take(line)
    asked = config()
    report = Placement(asked, [REMOTE, CUDA, CPU]).report(log, asked, flash_attention=False)
    remote, cuda, cpu = report.devices
    assert (remote.endpoint, cuda.endpoint) == ("10.0.0.2:50061", "")
    assert (remote.weights_bytes, cuda.weights_bytes, cpu.weights_bytes) == (4 * MIB, 3 * MIB, 3 * MIB)
    assert (cuda.kv_bytes, cpu.compute_bytes) == (5 * MIB, 6 * MIB)
    assert (report.layers, report.gpu_layers) == (3, 2)
    assert not report.flash_attention
    assert "not supported" in report.flash_attention_reason


@pytest.mark.parametrize(("switch", "is_on"), [("off", False), ("on", True), ("auto", True)])
def test_flash_attention_as_it_was_asked_for_needs_no_reason(switch: str, is_on: bool) -> None:
    asked = config(gpu_flash_attention=switch)
    report = Placement(asked, [CUDA, CPU]).report(LoadLog(), asked, flash_attention=is_on)
    assert report.flash_attention_reason == ""
