"""Where tensors are asked to go, as settings and files of models spell it."""

from __future__ import annotations

import pytest

from inferflux.worker.files.device_wish import DeviceWish, overrides_of, servers_of, tensor_split_of
from inferflux.worker.files.expert_ranks import ExpertRank


def test_parts_of_a_model_are_numbers() -> None:
    assert tensor_split_of(["3", " 1.5 ", "0"]) == (3, 1.5, 0)
    assert tensor_split_of([]) == ()


@pytest.mark.parametrize("parts", [["x"], ["-1"], ["nan"], ["inf"], ["0", "0"], ["1"] * 17])
def test_what_is_no_part_is_refused(parts: list[str]) -> None:
    with pytest.raises(ValueError, match="part"):
        tensor_split_of(parts)


def test_a_pattern_may_have_an_equals_sign() -> None:
    assert overrides_of([r"blk\.0\..*=CPU", "a=b=CUDA0"]) == ((r"blk\.0\..*", "CPU"), ("a=b", "CUDA0"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("blk", "pattern=DEVICE"),
        ("=CPU", "pattern=DEVICE"),
        ("a=", "pattern=DEVICE"),
        ("a=CP U", "pattern=DEVICE"),
        ("a(=CPU", "no regular expression"),
        ("ä=CPU", "ASCII"),
        ("a" * 201 + "=CPU", "200"),
    ],
)
def test_what_is_no_override_is_refused(given: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        overrides_of([given])


def test_there_are_not_more_overrides_than_llama_cpp_is_asked_to_try() -> None:
    with pytest.raises(ValueError, match="at most 64"):
        overrides_of(["a=CPU"] * 65)


def test_servers_are_host_and_port() -> None:
    assert servers_of(["10.0.0.1:50061", "gpu-2:1"]) == ("10.0.0.1:50061", "gpu-2:1")


@pytest.mark.parametrize("server", ["host", ":50061", "host:0", "host:x", "[::1]:50061", "host:70000"])
def test_what_is_no_server_is_refused(server: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        servers_of([server])


def test_a_server_is_named_once_and_there_are_at_most_16() -> None:
    with pytest.raises(ValueError, match="twice"):
        servers_of(["a:1", "a:1"])
    with pytest.raises(ValueError, match="16"):
        servers_of([f"a:{port}" for port in range(1, 18)])


def test_a_later_wish_says_what_it_says_and_leaves_the_rest() -> None:
    first = DeviceWish(gpu_layers=-1, tensor_split=(3, 1), rpc_servers=("a:1",))
    both = first.then(DeviceWish(gpu_layers=0, tensor_split=(), experts_on_cpu=2))
    assert both == DeviceWish(gpu_layers=0, tensor_split=(), experts_on_cpu=2, rpc_servers=("a:1",))
    assert first.is_all_remote
    assert not both.is_all_remote
    assert not DeviceWish().is_all_remote
    for here in (DeviceWish(experts_on_cpu=1), DeviceWish(expert_ranks=(ExpertRank("cpu"),))):
        assert not first.then(here).is_all_remote


def test_the_engine_is_told_what_was_asked() -> None:
    wish = DeviceWish(
        split_mode="none",
        main_gpu=1,
        tensor_overrides=(("a", "CPU"),),
        expert_ranks=(ExpertRank("CPU", (0, 3)), ExpertRank("RPC0")),
        gpu_flash_attention="off",
    )
    message = wish.to_message()
    assert (message.split_mode, message.main_gpu, message.gpu_flash_attention) == ("none", 1, "off")
    assert [(o.pattern, o.device) for o in message.tensor_overrides] == [("a", "CPU")]
    fixed, equal = message.expert_ranks
    assert (fixed.device, fixed.first_layer, fixed.last_layer) == ("CPU", 0, 3)
    assert not equal.HasField("first_layer")
    assert not message.rpc_servers
