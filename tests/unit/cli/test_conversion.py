"""Folders that cannot be converted are refused by file and field, and leave nothing behind."""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import gguf
import numpy as np
import pytest
from harness.hf_folders import DIM, byte_level_tokenizer, decoder, write_bert, write_safetensors, write_shards
from typer.testing import CliRunner

from inferflux.cli.app import app
from inferflux.cli.convert import OutTypeName
from inferflux.convert import ConversionError, convert
from inferflux.convert.out_types import OutType

Break = Callable[[Path], object]


def config(**changes: Any) -> Break:
    """Other fields of config.json; None leaves one out."""
    return edited("config.json", changes)


def edited(file: str, changes: dict[str, Any]) -> Break:
    def act(folder: Path) -> None:
        said = json.loads((folder / file).read_text()) | changes
        (folder / file).write_text(json.dumps({k: v for k, v in said.items() if v is not None}))

    return act


def tensors(**changes: Any) -> Break:
    """Other tensors, `__` for a dot; None leaves one out."""

    def act(folder: Path) -> None:
        named = {name.replace("__", "."): values for name, values in changes.items()}
        merged = {**decoder("llama").weights, **named}
        kept = {name: values for name, values in merged.items() if values is not None}
        write_safetensors(folder / "model.safetensors", kept)

    return act


def header(change: Callable[[dict[str, Any]], object]) -> Break:
    """Another header of model.safetensors, before the same tensors."""

    def act(folder: Path) -> None:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        end = 8 + struct.unpack_from("<Q", data)[0]
        entries = json.loads(data[8:end])
        change(entries)
        head = json.dumps(entries).encode()
        path.write_bytes(struct.pack("<Q", len(head)) + head + data[end:])

    return act


def of_norm(**changes: Any) -> Break:
    return header(lambda entries: entries["model.norm.weight"].update(changes))


def raw(file: str, data: bytes) -> Break:
    return lambda folder: (folder / file).write_bytes(data)


def sharded(change: Break) -> Break:
    def act(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        write_shards(folder, decoder("llama").weights)
        change(folder)

    return act


def index(change: Callable[[dict[str, str]], object]) -> Break:
    def act(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        said = json.loads(path.read_text())
        change(said["weight_map"])
        path.write_text(json.dumps(said))

    return sharded(act)


def tokenizer(**changes: Any) -> Break:
    return edited("tokenizer.json", changes)


def vocabulary(**changes: Any) -> Break:
    model = byte_level_tokenizer()["model"]
    return tokenizer(model={**model, "vocab": {**model["vocab"], **changes}})


NOT_FINITE = np.full(DIM, np.nan)
UNKNOWN_SPLIT = {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated", "invert": False}
DEEP = b"[" * 100_000

BROKEN: dict[str, tuple[Break, str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json: No such file"),
    "config is no JSON": (raw("config.json", b"{"), "config.json: it is not JSON"),
    "config is deep": (raw("config.json", DEEP), "config.json: it is not JSON"),
    "config is a list": (raw("config.json", b"[]"), "config.json: it holds no object"),
    "unknown architecture": (config(architectures=["X"]), "config.json: architectures: 'X' is not converted"),
    "no architecture": (config(architectures=None), "config.json: architectures"),
    "code of its own": (config(auto_map={"AutoModel": "m.M"}), "auto_map: .* never run"),
    "quantized": (config(quantization_config={"quant_method": "gptq"}), "quantization_config"),
    "layers": (config(num_hidden_layers=10**9), "num_hidden_layers: 1000000000 is not"),
    "heads": (config(num_attention_heads="4"), "num_attention_heads: '4' is not"),
    "heads of a key": (config(num_key_value_heads=3), "num_key_value_heads: 4 heads cannot share 3"),
    "epsilon": (config(rms_norm_eps=-1), "rms_norm_eps: -1 is not a number above 0"),
    "a number that 32 bits do not hold": (config(rms_norm_eps=1e300), "rms_norm_eps: 1e\\+300 is not"),
    "a number that no float holds": (config(rms_norm_eps=10**400), "rms_norm_eps: 1000"),
    "a template of lists": (edited("tokenizer_config.json", {"chat_template": [[]]}), "chat_template"),
    "a template of numbers": (
        edited("tokenizer_config.json", {"chat_template": [{"name": "a", "template": 5}]}),
        "chat_template",
    ),
    "half a character": (edited("tokenizer_config.json", {"chat_template": "\ud800"}), "chat_template"),
    "activation": (config(hidden_act="relu"), "hidden_act: 'relu'"),
    "rope": (config(rope_scaling={"type": "dynamic", "factor": 2}), "rope_type: 'dynamic' is not known"),
    "rope without a factor": (
        config(rope_scaling={"rope_type": "linear"}),
        "rope_scaling: factor: it is missing",
    ),
    "vocabulary": (config(vocab_size=10), "vocab_size|embed_tokens"),
    "missing tensor": (tensors(model__norm__weight=None), "there is no tensor for output_norm.weight"),
    "unknown tensor": (tensors(model__extra__weight=NOT_FINITE), "'model.extra.weight' is not known"),
    "wrong shape": (
        tensors(model__norm__weight=np.ones(3)),
        r"model.norm.weight: shape: \[3\], .* it is \[64\]",
    ),
    "not finite": (tensors(model__norm__weight=NOT_FINITE), "model.norm.weight: .* not finite"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "neither model.safetensors nor"),
    "empty": (raw("model.safetensors", b""), "too short"),
    "header too long": (raw("model.safetensors", struct.pack("<Q", 2**63)), "a header of 9,223,372"),
    "header is no JSON": (raw("model.safetensors", struct.pack("<Q", 2) + b"{{"), "header: it is not JSON"),
    "header is deep": (raw("model.safetensors", struct.pack("<Q", len(DEEP)) + DEEP), "it is not JSON"),
    "cut off": (
        lambda f: raw("model.safetensors", (f / "model.safetensors").read_bytes()[:-4])(f),
        "data_offsets: they are no place",
    ),
    "too long": (
        lambda f: raw("model.safetensors", (f / "model.safetensors").read_bytes() + b"1234")(f),
        "tensors end at",
    ),
    "dtype": (of_norm(dtype="F4"), "model.norm.weight: dtype: 'F4' is not known"),
    "dtype of another width": (
        of_norm(dtype="F16"),
        "data_offsets: 256 bytes, and F16 of its shape takes 128",
    ),
    "whole numbers": (of_norm(dtype="I32"), "model.norm.weight: I32 is not read"),
    "shape": (of_norm(shape=[-64]), "model.norm.weight: shape: it is not a list"),
    "shape that overflows": (of_norm(shape=[2**40, 2**40]), "model.norm.weight: data_offsets: 256 bytes"),
    "offsets": (of_norm(data_offsets=[8, 0]), "model.norm.weight: data_offsets: they are no place"),
    "overlap": (of_norm(data_offsets=[0, 256]), "data_offsets: it begins at"),
    "a shard elsewhere": (
        index(lambda placed: placed.update({"model.norm.weight": "../model.safetensors"})),
        "weight_map: '../model.safetensors' is not the name",
    ),
    "a shard is missing": (
        sharded(lambda f: (f / "model-00002-of-00002.safetensors").unlink()),
        "model-00002-of-00002.safetensors: No such file",
    ),
    "a tensor of the index is missing": (
        index(lambda placed: placed.update({"x": "model-00001-of-00002.safetensors"})),
        "model-00001-of-00002.safetensors: x is missing",
    ),
    "no tokenizer": (
        lambda f: (f / "tokenizer.json").unlink(),
        "no tokenizer.json, tokenizer.model or vocab.txt",
    ),
    "unknown split": (tokenizer(pre_tokenizer=UNKNOWN_SPLIT), "pre_tokenizer: texts are split by .*x"),
    "kind of tokenizer": (tokenizer(model={"type": "Unigram"}), "type: 'Unigram' is not converted"),
    "an id twice": (vocabulary(zz=0), "zz: its id 0 is '.*' as well"),
    "an id far away": (vocabulary(zz=3_000_000), "ids: they go up to 3,000,000"),
    "an id that is none": (vocabulary(zz=-1), "vocab: zz: -1 is not a whole number"),
    "no merges": (
        tokenizer(model={**byte_level_tokenizer()["model"], "merges": []}),
        "merges: there are none",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    breaks, said = BROKEN[name]
    folder = decoder("llama").write(tmp_path / "model")
    breaks(folder)
    with pytest.raises(ConversionError) as refused:
        convert(folder, tmp_path / "out" / "out.gguf")
    assert re.search(said, str(refused.value))
    assert not list((tmp_path / "out").glob("*")) + list((tmp_path / "out").glob(".*"))


def test_numbers_that_f16_cannot_hold_are_refused(tmp_path: Path) -> None:
    folder = decoder("llama").write(tmp_path / "model")
    tensors(lm_head__weight=np.full((264, DIM), 1e6))(folder)
    with pytest.raises(ConversionError, match=r"output.weight: .* too large for f16"):
        convert(folder, tmp_path / "out.gguf")
    assert convert(folder, tmp_path / "out.gguf", out_type=OutType.BF16).path.is_file()


def test_a_disk_that_is_too_small_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("inferflux.convert.writing.shutil.disk_usage", lambda _path: free)
    with pytest.raises(ConversionError, match=r"bytes are needed, and 1,000 are free"):
        convert(decoder("llama").write(tmp_path / "model"), tmp_path / "out.gguf")


def test_a_window_that_llama_cpp_would_not_keep_bounds_the_context(tmp_path: Path) -> None:
    folder = decoder("mistral", sliding_window=64).write(tmp_path / "model")
    made = convert(folder, tmp_path / "out.gguf")
    assert "64 tokens instead of 256" in made.notes[0]
    reader = gguf.GGUFReader(made.path)
    assert reader.fields["llama.context_length"].contents() == 64


def test_rows_that_blocks_do_not_divide_are_stored_in_f16(tmp_path: Path) -> None:
    folder = decoder("llama", intermediate_size=80).write(tmp_path / "model")
    kept = {**decoder("llama").weights}
    for i in range(2):
        for name in ("gate", "up"):
            kept[f"model.layers.{i}.mlp.{name}_proj.weight"] = np.ones((80, DIM))
        kept[f"model.layers.{i}.mlp.down_proj.weight"] = np.ones((DIM, 80))
    write_safetensors(folder / "model.safetensors", kept)
    made = convert(folder, tmp_path / "out.gguf", out_type=OutType.Q8_0)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(made.path).tensors}
    assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")
    assert kinds["blk.0.attn_norm.weight"] == "F32"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_act": "relu"}, "hidden_act: 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: 'relative_key'"),
        ({"hidden_size": 63}, "num_attention_heads: 63 does not split"),
    ],
)
def test_a_bert_that_llama_cpp_does_not_compute_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    folder = write_bert(tmp_path / "model")
    config(**change)(folder)
    with pytest.raises(ConversionError, match=said):
        convert(folder, tmp_path / "out.gguf")


def test_a_module_behind_the_pooling_is_refused(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "model")
    kinds = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Dense"]
    (folder / "modules.json").write_text(json.dumps([{"type": kind} for kind in kinds]))
    with pytest.raises(ConversionError, match=r"modules.json: type: '.*Dense' is not converted"):
        convert(folder, tmp_path / "out.gguf")


def test_the_command_writes_beside_itself_and_replaces_nothing_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder("qwen2").write(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    run = CliRunner()
    first = run.invoke(app, ["models", "convert", "tiny", "--outtype", "q8_0"])
    assert first.exit_code == 0
    assert "tiny-q8_0.gguf: qwen2, 27 tensors" in first.stdout
    again = run.invoke(app, ["models", "convert", "tiny", "--outtype", "q8_0"])
    assert "is there already" in str(again.exception)
    assert run.invoke(app, ["models", "convert", "tiny", "--outtype", "q8_0", "--force"]).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny", "tiny-q8_0.gguf"]


def test_the_command_knows_the_types_of_the_converter() -> None:
    assert list(get_args(OutTypeName)) == list(OutType)


def test_the_command_says_what_to_install_where_there_is_no_converter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "inferflux.convert", None)
    result = CliRunner().invoke(app, ["models", "convert", str(tmp_path)])
    assert str(result.exception) == "there is no module inferflux.convert: pip install inferflux-convert"
