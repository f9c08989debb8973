"""What of a model fits which devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.files.device_plan import DRIVER_BYTES, DevicePlan, plan_devices
from inferflux.worker.files.kv_types import KvTypes
from inferflux.worker.files.model_facts import ModelFacts
from inferflux.worker.files.needs import Asked
from inferflux.worker.files.weight_parts import WeightParts

MIB = 1 << 20
GIB = 1 << 30
LAYER = 100 * MIB
EXPERTS = 80 * MIB
# Of 1,024 cells: 2 heads of 64 numbers of 2 bytes, keys and values.
KV = 1024 * 2 * 2 * 64 * 2


def facts(n_layers: int = 10, *, experts: int = 0, shares_output: bool = False, heads: int = 2) -> ModelFacts:
    return ModelFacts(
        embedding=512,
        feed_forward=2048,
        vocabulary_size=1000,
        kv_heads=(heads,) * n_layers,
        key_length=64,
        value_length=64,
        n_experts=8 if experts else 0,
        parts=WeightParts(
            input=50 * MIB,
            embedding=50 * MIB,
            output=60 * MIB,
            layers=(LAYER,) * n_layers,
            experts=(experts,) * n_layers,
            shares_output=shares_output,
        ),
    )


def plan(found: ModelFacts, *gpus: int, memory: int = 64 * GIB, **asked: object) -> DevicePlan:
    wanted = Asked(1024, 1, **asked)  # type: ignore[arg-type]
    return plan_devices("llama", 2 * GIB, 1024, found, wanted, gpus, main_memory=memory)


def compute() -> int:
    return plan(facts(), 64 * GIB).devices[0].compute


def room(layers: int, *, output: bool = False, experts: int = 0) -> int:
    """A GPU that has just that many layers."""
    return DRIVER_BYTES + compute() + layers * (LAYER - experts + KV) + (60 * MIB if output else 0)


def test_without_a_gpu_all_is_in_main_memory_and_shared_weights_are_there_once() -> None:
    made = plan(facts())
    (memory,) = made.devices
    assert (made.gpu_layers, made.tensor_split, made.layers) == (0, (), 11)
    assert memory.layers == 11
    assert memory.weights == 50 * MIB + 60 * MIB + 10 * LAYER
    assert memory.kv == 10 * KV
    assert made.fits
    tied = plan(facts(shares_output=True)).devices[0]
    assert tied.weights == 60 * MIB + 10 * LAYER


def test_all_that_fits_goes_to_the_gpu_but_the_embeddings() -> None:
    made = plan(facts(), room(10, output=True))
    gpu, memory = made.devices
    assert (made.gpu_layers, made.tensor_split) == (-1, ())
    assert made.settings == {"INFERFLUX_WORKER_GPU_LAYERS": "-1"}
    assert (gpu.layers, gpu.weights, gpu.kv) == (11, 10 * LAYER + 60 * MIB, 10 * KV)
    assert gpu.total == gpu.room
    assert (memory.layers, memory.weights, memory.kv) == (0, 50 * MIB, 0)


def test_one_byte_too_few_leaves_the_first_layer_in_main_memory() -> None:
    made = plan(facts(), room(10, output=True) - 1)
    gpu, memory = made.devices
    assert made.gpu_layers == 10
    assert (gpu.first_layer, gpu.layers) == (1, 10)
    assert (memory.layers, memory.kv) == (1, KV)
    assert any("1 of 11 layers are computed by the CPU" in note for note in made.notes)


def test_two_gpus_share_by_their_room_in_whole_layers() -> None:
    made = plan(facts(), 64 * GIB, 64 * GIB)
    assert made.tensor_split == (5, 6)
    assert [device.first_layer for device in made.devices[:2]] == [0, 5]
    assert made.settings["INFERFLUX_WORKER_TENSOR_SPLIT"] == "5,6"
    uneven = plan(facts(), room(8), room(2, output=True))
    assert uneven.tensor_split == (8, 3)
    assert uneven.fits
    assert any("SPLIT_MODE=tensor" in note and "NCCL" in note for note in made.notes)


def test_a_mixture_keeps_as_few_experts_in_main_memory_as_will_do() -> None:
    found = facts(experts=EXPERTS)
    fits_nine = room(10, output=True) - EXPERTS
    made = plan(found, fits_nine)
    gpu, memory = made.devices
    assert (made.gpu_layers, made.experts_on_cpu) == (-1, 1)
    assert memory.weights == 50 * MIB + EXPERTS
    assert gpu.weights == 10 * LAYER + 60 * MIB - EXPERTS
    assert made.settings["INFERFLUX_WORKER_EXPERTS_ON_CPU"] == "1"
    assert plan(found, room(10, output=True, experts=EXPERTS)).experts_on_cpu == -1
    few = plan(found, room(10, output=True, experts=EXPERTS) - 1)
    assert few.experts_on_cpu == 0
    assert 0 < few.gpu_layers < 10


@pytest.mark.parametrize("gpu", [1, DRIVER_BYTES, DRIVER_BYTES + 60 * MIB])
def test_a_gpu_that_is_too_small_gets_nothing(gpu: int) -> None:
    made = plan(facts(), gpu)
    assert made.gpu_layers == 0
    assert made.devices[0].total == 0
    assert made.devices[1].layers == 11
    assert any("No GPU holds a layer" in note for note in made.notes)


def test_a_projector_is_on_the_first_gpu_and_takes_the_room_of_layers() -> None:
    gpu = room(10, output=True)

    def with_projector(*gpus: int) -> DevicePlan:
        return plan_devices("llama", 2 * GIB, 1024, facts(), Asked(1024, 1), gpus, projector_bytes=3 * LAYER)

    assert plan(facts(), gpu).gpu_layers == -1
    made = with_projector(gpu)
    first, memory = made.devices
    assert made.gpu_layers == first.layers < 11
    assert first.fits
    assert first.weights == plan(facts(), room(first.layers - 1, output=True)).devices[0].weights + 3 * LAYER
    assert "The projector is 300 MiB in GPU 0" in made.notes[-1]
    assert with_projector(gpu + 3 * LAYER).gpu_layers == -1
    (memory,) = with_projector().devices
    assert memory.weights == plan(facts()).devices[0].weights + 3 * LAYER


def test_a_gpu_without_room_for_the_projector_does_not_fit() -> None:
    made = plan_devices("llama", 2 * GIB, 1024, facts(), Asked(1024, 1), [GIB], projector_bytes=2 * GIB)
    assert (made.gpu_layers, made.devices[0].fits, made.fits) == (0, False, False)


def test_main_memory_that_is_too_small_is_told() -> None:
    made = plan(facts(), memory=GIB)
    assert not made.fits
    assert any("Main memory has no room" in note for note in made.notes)


def test_quantized_keys_and_values_take_less_and_need_flash_attention() -> None:
    made = plan(facts(), types=KvTypes("q8_0", "q8_0"))
    assert made.kv_bytes == 10 * KV * 34 // 64
    assert any("needs flash attention" in note for note in made.notes)


@given(
    gpus=st.lists(st.integers(0, 3 * GIB), max_size=4),
    n_layers=st.integers(1, 20),
    experts=st.sampled_from([0, EXPERTS]),
)
def test_every_layer_is_in_one_place_and_no_gpu_is_too_full(
    gpus: list[int], n_layers: int, experts: int
) -> None:
    found = facts(n_layers, experts=experts)
    made = plan(found, *gpus)
    *on_gpus, memory = made.devices
    assert all(device.fits for device in on_gpus)
    assert sum(device.layers for device in made.devices) == n_layers + 1
    at = memory.layers
    for device in on_gpus:
        if device.layers:
            assert device.first_layer == at
            at += device.layers
    assert sum(device.kv for device in made.devices) == made.kv_bytes == n_layers * KV
    assert sum(device.weights for device in made.devices) == 110 * MIB + n_layers * LAYER
