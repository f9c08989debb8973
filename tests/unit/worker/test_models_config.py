"""The file of models: what it says, and what is refused by the entry's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.hosts import MAX_KNOWN
from inferflux.worker.files.device_wish import DeviceWish
from inferflux.worker.files.expert_ranks import ExpertRank
from inferflux.worker.host.catalog import Wish
from inferflux.worker.host.models_config import read_models


def written(folder: Path, text: str) -> Path:
    path = folder / "inferflux.yaml"
    path.write_text(text)
    return path


def test_every_field_is_read_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
models:
  - {path: sub/chat.gguf}
  - path: /other/big.gguf
    name: big
    aliases: [b, large]
    pinned: true
    default: true
    context: 4096
    slots: 3
    kv_cells: 512
    deterministic: true
  - {path: c.gguf, kv_bytes: 1048576}
x-something: else
""",
    )
    assert read_models(path) == [
        (tmp_path / "sub/chat.gguf", Wish("chat")),
        (
            Path("/other/big.gguf"),
            Wish(
                "big",
                aliases=("b", "large"),
                is_pinned=True,
                is_default=True,
                context_length=4096,
                slots=3,
                kv_cells=512,
                is_deterministic=True,
            ),
        ),
        (tmp_path / "c.gguf", Wish("c", kv_bytes=1 << 20)),
    ]


@pytest.mark.parametrize("text", ["", "# nothing", "models: []", "x-else: 1"])
def test_a_file_without_models_names_none(tmp_path: Path, text: str) -> None:
    assert read_models(written(tmp_path, text)) == []


REFUSED = {
    "no YAML": ("models: [", "is no YAML"),
    "a bare text": ("models", "must be a mapping"),
    "a list": ("- path: a", "must be a mapping"),
    "no list": ("models: {path: a}", "models must be a list"),
    "no path": ("models: [{name: a}]", "models[0].path must be set"),
    "a path that no file has": ('models: [{path: "a\\0b"}]', "models[0].path"),
    "an empty path": ("models: [{path: ''}]", "models[0].path"),
    "an unknown field": (
        "models: [{path: a}, {path: b, contxt: 1}]",
        "models[1].contxt is not known: did you mean context?",
    ),
    "a text for a number": ("models: [{path: a, slots: '3'}]", "models[0].slots"),
    "no slots": ("models: [{path: a, slots: 0}]", "models[0].slots"),
    "too many slots": ("models: [{path: a, slots: 257}]", "models[0].slots"),
    "a context of none": ("models: [{path: a, context: 0}]", "models[0].context"),
    "a word for a truth value": ("models: [{path: a, pinned: perhaps}]", "models[0].pinned"),
    "a name too long": (f"models: [{{path: a, name: {'n' * 257}}}]", "models[0].name"),
    "a name too long in bytes": (f"models: [{{path: a, name: {'ä' * 200}}}]", "models[0].name"),
    "a name of two lines": ('models: [{path: a, name: "a\\nb"}]', "models[0].name"),
    "an alias that clears a terminal": ('models: [{path: a, aliases: ["\\e[2J"]}]', "models[0].aliases[0]"),
    "both sizes of a cache": (
        "models: [{path: a, kv_cells: 1, kv_bytes: 1}]",
        "models[0]: kv_cells",
    ),
    "one name twice": ("models: [{path: x/a.gguf}, {path: y/a.gguf}]", "two models are called 'a'"),
    "two defaults": (
        "models: [{path: a, default: true}, {path: b, default: true}]",
        "more than one model is the default",
    ),
    "too many": (f"models: [{', '.join(f'{{path: a{i}}}' for i in range(MAX_KNOWN + 1))}]", "models must"),
    "objects of Python": ("models: !!python/object/apply:os.getcwd []", "is no YAML"),
    "a billion laughs": ("x-a: &a [x,x]\nx-b: &b [*a,*a]\nmodels: *b", "models[0] must be a mapping"),
    "deep nesting": ("models: " + "[" * 5000, "is no YAML"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    text, why = REFUSED[name]
    path = written(tmp_path, text)
    with pytest.raises(InvalidArgument) as caught:
        read_models(path)
    assert caught.value.field == "INFERFLUX_CONFIG"
    assert str(path) in caught.value.message
    assert why in caught.value.message, caught.value.message


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(InvalidArgument, match=str(path)):
            read_models(path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgument, match="is no YAML"):
        read_models(binary)
    large = written(tmp_path, "#" * ((1 << 20) + 1))
    with pytest.raises(InvalidArgument, match="more than 1048576 bytes"):
        read_models(large)


def test_devices_are_read_for_each_model(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        r"""
models:
  - path: big.gguf
    gpu_layers: 20
    split_mode: layer
    tensor_split: [3, 1.5]
    main_gpu: 1
    experts_on_cpu: 4
    tensor_overrides: ['blk\.0\..*=CPU']
    expert_ranks: [RPC0, CUDA0]
    rpc_servers: ["gpu-2:50061"]
    gpu_flash_attention: "on"
  - {path: small.gguf, gpu_layers: 0}
""",
    )
    (_, big), (_, small) = read_models(path)
    assert big.devices == DeviceWish(
        gpu_layers=20,
        split_mode="layer",
        tensor_split=(3, 1.5),
        main_gpu=1,
        experts_on_cpu=4,
        tensor_overrides=((r"blk\.0\..*", "CPU"),),
        expert_ranks=(ExpertRank("RPC0"), ExpertRank("CUDA0")),
        rpc_servers=("gpu-2:50061",),
        gpu_flash_attention="on",
    )
    assert small.devices == DeviceWish(gpu_layers=0)


@pytest.mark.parametrize(
    ("value", "switch"),
    [
        ("on", "on"),
        ("true", "on"),
        ("1", "on"),
        ("off", "off"),
        ("False", "off"),
        ("0", "off"),
        ("auto", "auto"),
    ],
)
def test_a_switch_is_what_yaml_makes_of_it(tmp_path: Path, value: str, switch: str) -> None:
    path = written(tmp_path, f"models:\n  - path: a.gguf\n    gpu_flash_attention: {value}\n")
    ((_, wish),) = read_models(path)
    assert wish.devices.gpu_flash_attention == switch


@pytest.mark.parametrize(
    "line",
    [
        "gpu_layers: -2",
        "split_mode: rows",
        "tensor_split: [x]",
        "tensor_split: [0]",
        "main_gpu: 16",
        "experts_on_cpu: 5000",
        "tensor_overrides: [blk]",
        "expert_ranks: [CUDA0=3]",
        "rpc_servers: [host]",
        "gpu_flash_attention: maybe",
    ],
)
def test_devices_that_cannot_be_are_refused_by_name(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, f"models:\n  - path: a.gguf\n    {line}\n")
    with pytest.raises(InvalidArgument, match=rf"models\[0\]\.{line.partition(':')[0]}"):
        read_models(path)
