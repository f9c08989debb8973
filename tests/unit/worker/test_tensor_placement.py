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
