"""Where llama.cpp puts layers and experts that are asked for, on RPC servers of the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.engine_process import Engine, engine
from harness.gguf_files import DIM, FF, MIXTURE_EXPERTS, MIXTURE_LAYERS, tiny_mixture
from harness.rpc_servers import RpcServer, rpc_servers
from harness.worker import DEMO_MODEL, batch_item

from inferflux.v1 import device_pb2, engine_pb2, tokens_pb2
from inferflux.worker.files.device_plan import DRIVER_BYTES, plan_devices
from inferflux.worker.files.device_wish import DeviceWish
from inferflux.worker.files.expert_ranks import ExpertDispatch, ranks_of
from inferflux.worker.files.model_file import read_model_file
from inferflux.worker.files.needs import Asked

pytestmark = pytest.mark.long

DRAFT = DEMO_MODEL.with_name("inferflux-demo-draft.gguf")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RpcServer]]:
    with rpc_servers(tmp_path_factory.mktemp("rpc")) as started:
        yield started


def placement(servers: list[RpcServer], **asked: Any) -> device_pb2.DevicePlacement:
    return device_pb2.DevicePlacement(rpc_servers=[server.endpoint for server in servers], **asked)


def by_name(one: Engine) -> dict[str, device_pb2.Device]:
    return {device.name: device for device in one.ready.device_context.devices}


def answer(one: Engine) -> list[int]:
    """A greedy one."""
    assert one.ready.slots == 1
    start = batch_item("a", model="m", prompt=list(range(20, 36)), max_tokens=16)
    one.channel.send(engine_pb2.EngineCommand(start=start))
    tokens: list[int] = []
    while True:
        step = one.channel.receive().step
        for emission in step.emissions:
            tokens += tokens_pb2.TokenChunk.FromString(emission.chunk).token_ids
        if step.finished:
            return tokens


@pytest.mark.parametrize("gpus", [(3, 2), (2, 1)], ids=["all", "some"])
def test_layers_are_where_a_plan_says(servers: list[RpcServer], gpus: tuple[int, int]) -> None:
    file = read_model_file(DEMO_MODEL)
    asked = Asked(0, 1, kv_cells=512)
    layers = [file.facts.parts.layers[0] + file.facts.kv_bytes_of_layer(0, asked.types) * 512] * 5

    def plan(*rooms: int) -> Any:
        return plan_devices(file.architecture, file.size_bytes, file.context_length, file.facts, asked, rooms)

    compute = plan(1 << 40).devices[0].compute
    # As large as these layers, and the second for the output layer as well.
    rooms = [DRIVER_BYTES + compute + sum(layers[:n]) + (1 << 14) for n in gpus]
    made = plan(rooms[0], rooms[1] + file.facts.parts.output)
    on_gpus = [device.layers for device in made.devices[:2]]
    assert all(on_gpus)
    asked_for = placement(servers, tensor_split=made.tensor_split)
    with engine(gpu_layers=made.gpu_layers, placement=asked_for) as one:
        devices = by_name(one)
        assert [devices["RPC0"].layers, devices["RPC1"].layers] == on_gpus
        assert devices["CPU"].layers == made.devices[2].layers
        for name, planned in zip(("RPC0", "RPC1", "CPU"), made.devices, strict=True):
            assert abs(devices[name].weights_bytes - planned.weights) < 1 << 15
            assert abs(devices[name].kv_bytes - planned.kv) < 1 << 15
        os.close(one.lifeline)


def test_experts_stay_in_main_memory_and_answers_stay_the_same(
    servers: list[RpcServer], tmp_path: Path
) -> None:
    path = tmp_path / "mixture.gguf"
    path.write_bytes(tiny_mixture().data())
    options: dict[str, Any] = {"model_path": str(path), "kv_cells": 256, "flash_attention": True}
    with engine(**options, prefill_cells=0) as one:
        expected = answer(one)
        os.close(one.lifeline)
    on_server: list[int] = []
    for n in (0, 1, -1):
        asked_for = placement(servers[:1], experts_on_cpu=n)
        with engine(**options, gpu_layers=-1, placement=asked_for) as one:
            assert answer(one) == expected
            on_server.append(by_name(one)["RPC0"].weights_bytes)
            assert one.ready.device_context.gpu_layers == MIXTURE_LAYERS + 1
            os.close(one.lifeline)
    experts = 3 * MIXTURE_EXPERTS * DIM * FF * 4
    none, first, every = on_server
    # In the log there are hundredths of a MiB.
    assert none - first == pytest.approx(experts, abs=1 << 14)
    assert none - every == pytest.approx(2 * experts, abs=1 << 14)


def test_experts_of_each_layer_are_on_the_rank_that_owns_them_and_answers_stay_the_same(
    servers: list[RpcServer], tmp_path: Path
) -> None:
    path = tmp_path / "mixture.gguf"
    path.write_bytes(tiny_mixture().data())
    tensors = read_model_file(path).facts.parts.expert_tensors
    assert tensors == (3,) * MIXTURE_LAYERS
    options: dict[str, Any] = {"model_path": str(path), "kv_cells": 256, "flash_attention": True}
    with engine(**options, prefill_cells=0) as one:
        expected = answer(one)
        os.close(one.lifeline)
    weights: list[int] = []
    for given in (["RPC0", "RPC1"], [f"{servers[1].endpoint}=0-1"], ["RPC1=0-0", "CPU=1-1"]):
        ranks = ranks_of(given)
        message = DeviceWish(expert_ranks=ranks).to_message()
        # All layers on the first server: experts alone are on the second.
        asked_for = placement(
            servers,
            tensor_split=[1, 0],
            expert_ranks=message.expert_ranks,
            expert_tensors=tensors,
            n_experts=MIXTURE_EXPERTS,
        )
        with engine(**options, gpu_layers=-1, placement=asked_for) as one:
            assert answer(one) == expected
            dispatch = ExpertDispatch(ranks, range(MIXTURE_LAYERS), MIXTURE_EXPERTS)
            for found in one.ready.expert_ranks:
                for layer in range(found.first_layer, found.last_layer + 1):
                    owner = dispatch.owner_of(layer, MIXTURE_EXPERTS - 1)
                    assert owner is not None
                    assert dispatch.ranks[owner].device in (found.device, found.endpoint)
            assert one.ready.expert_ranks[-1].last_layer == MIXTURE_LAYERS - 1
            assert not one.ready.device_context.warnings
            weights.append(by_name(one)["RPC1"].weights_bytes)
            os.close(one.lifeline)
    experts = 3 * MIXTURE_EXPERTS * DIM * FF * 4
    # In the log there are hundredths of a MiB.
    assert weights == [pytest.approx(n * experts, abs=1 << 14) for n in (1, 2, 1)]
    asked_for.expert_ranks[0].device = "RPC7"
    with engine(**options, gpu_layers=-1, placement=asked_for) as one:
        assert "INFERFLUX_WORKER_EXPERT_RANKS names the device RPC7" in one.first.load_error
        os.close(one.lifeline)


def test_one_gpu_has_all_layers_or_each_has_a_part_of_every_layer(servers: list[RpcServer]) -> None:
    with engine(gpu_layers=-1, placement=placement(servers, split_mode="none", main_gpu=1)) as one:
        assert (by_name(one)["RPC0"].layers, by_name(one)["RPC1"].layers) == (0, 6)
        os.close(one.lifeline)
    with engine(
        gpu_layers=-1, flash_attention=True, placement=placement(servers, split_mode="tensor")
    ) as one:
        context = one.ready.device_context
        (group,) = [device for device in context.devices if device.kind == device_pb2.DEVICE_KIND_GROUP]
        assert (group.layers, context.gpu_layers, group.description) == (6, 6, "RPC0, RPC1")
        assert group.weights_bytes > 0
        assert len(answer(one)) == 16
        os.close(one.lifeline)


def test_a_split_that_devices_do_not_have_is_refused_in_llama_cpps_words(servers: list[RpcServer]) -> None:
    with engine(gpu_layers=-1, placement=placement(servers, split_mode="row")) as one:
        assert "RPC0 does not support split buffers" in one.first.load_error
        os.close(one.lifeline)


def test_a_draft_model_stays_on_this_machine(servers: list[RpcServer]) -> None:
    with engine(
        gpu_layers=-1,
        flash_attention=True,
        placement=placement(servers),
        draft_model_path=str(DRAFT),
        speculation=3,
    ) as one:
        assert not one.ready.speculation_error
        before = one.ready.device_context.gpu_layers
        assert len(answer(one)) == 16
        assert before == 6
        os.close(one.lifeline)


def test_a_server_with_another_client_refuses_the_load_by_its_name(servers: list[RpcServer]) -> None:
    with engine(gpu_layers=-1, placement=placement(servers[:1])) as one:
        assert one.ready
        with engine(gpu_layers=-1, placement=placement(servers[:1])) as other:
            assert servers[0].endpoint in other.first.load_error
            assert "one client at a time" in other.first.load_error
            os.close(other.lifeline)
        os.close(one.lifeline)
