"""The chat template of the project's own models, and reading back what was written."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from harness.chat_template import RefusedError, render

from tools.bench_model import parse, write
from tools.llama_gguf import CHAT_TEMPLATE, SPECIALS, mean_llama, read_llama

MODELS = Path(__file__).parents[3] / "models"
SMALL = shlex.split("--layers 2 --dim 64 --heads 4 --kv-heads 2 --ff 96 --vocab 320 --context 512")
CALCULATOR = {"name": "calculator", "description": "a < b", "parameters": {"type": "object"}}
WEATHER = {"name": "weather", "parameters": {}}
TOOLS = [{"type": "function", "function": CALCULATOR}, WEATHER]
SECTION = (
    '# Tools\n\n<tools>\n{"name": "calculator", "description": "a < b", "parameters": {"type": "object"}}\n'
    '{"name": "weather", "parameters": {}}\n</tools><|im_end|>\n'
)
ASSISTANT = "<|im_start|>assistant\n"
ASKED = {"role": "user", "content": "Hi"}


def call(name: str, arguments: object) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("name", ["inferflux-demo", "inferflux-demo-draft"])
def test_the_demo_models_carry_the_template(name: str) -> None:
    reader = gguf.GGUFReader(MODELS / f"{name}.gguf")
    assert reader.fields["tokenizer.chat_template"].contents() == CHAT_TEMPLATE


@pytest.mark.parametrize("tools", [None, []])
def test_messages_without_tools_are_chatml(tools: list[dict[str, Any]] | None) -> None:
    system, answer = {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": ""}
    assert render([system, ASKED, answer, ASKED], tools) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        f"{ASSISTANT}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n{ASSISTANT}"
    )


def test_tools_follow_the_text_of_the_system_message() -> None:
    expected = f"<|im_start|>system\nBe brief.\n\n{SECTION}<|im_start|>user\nHi<|im_end|>\n{ASSISTANT}"
    assert render([{"role": "system", "content": "Be brief."}, ASKED], TOOLS) == expected


def test_tools_make_a_system_message_where_there_is_none() -> None:
    assert (
        render([ASKED], TOOLS) == f"<|im_start|>system\n{SECTION}<|im_start|>user\nHi<|im_end|>\n{ASSISTANT}"
    )


@pytest.mark.parametrize("arguments", [{"city": "Rome"}, '{"city": "Rome"}'])
@pytest.mark.parametrize(("content", "before"), [(None, ""), ("", ""), ("Well.", "\nWell.")])
def test_calls_are_json_in_tags_after_the_text(arguments: object, content: str | None, before: str) -> None:
    calling = {"role": "assistant", "content": content, "tool_calls": [call("weather", arguments)] * 2}
    one = '\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    expected = f"<|im_start|>assistant{before}{one}{one}<|im_end|>\n{ASSISTANT}"
    assert render([ASKED, calling]).endswith(expected)


def test_results_in_a_row_share_one_user_message() -> None:
    results = [{"role": "tool", "content": "19"}, {"role": "tool", "content": "sunny"}]
    calling = {"role": "assistant", "content": None, "tool_calls": [call("calculator", {})]}
    assert render([ASKED, calling, *results, calling, results[0]]).split("<|im_end|>\n")[2::2] == [
        "<|im_start|>user\n<tool_response>\n19\n</tool_response>\n<tool_response>\nsunny\n</tool_response>",
        "<|im_start|>user\n<tool_response>\n19\n</tool_response>",
    ]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "bad", "content": ""}], "Unknown role: bad"),
        ([ASKED, {"role": "system", "content": ""}], "A system message must come first"),
        ([{"role": "user", "content": None}], "The content of a message must be text"),
        ([{"role": "tool"}], "The content of a message must be text"),
    ],
)
def test_messages_that_do_not_fit_are_refused(messages: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        render(messages, TOOLS)


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
def test_a_written_file_is_read_back(tmp_path: Path, quant: str) -> None:
    out = tmp_path / "tiny.gguf"
    write(parse([*SMALL, "--quant", quant, "--out", str(out)]))
    vocabulary, weights = read_llama(out)
    assert len(vocabulary.tokens) == 320
    assert tuple(vocabulary.tokens[-3:]) == SPECIALS
    assert len(vocabulary.merges) == 320 - 3 - 256
    assert weights["blk.1.attn_k.weight"].shape == (32, 64)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(out).tensors}
    kind = gguf.GGMLQuantizationType[quant]
    again = weights["blk.1.attn_k.weight"]
    if quant != "F32":
        again = gguf.quants.quantize(again, kind)
    assert np.array_equal(again, stored["blk.1.attn_k.weight"].data)


def test_a_file_without_a_byte_level_bpe_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "bare.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="byte-level BPE"):
        read_llama(tmp_path / "bare.gguf")


def test_a_mean_is_halfway_and_of_one_model_alone(tmp_path: Path) -> None:
    files = [tmp_path / f"{quant}.gguf" for quant in ("F32", "Q4_0")]
    for path in files:
        write(parse([*SMALL, "--quant", path.stem, "--out", str(path)]))
    (vocabulary, one), (_, two) = map(read_llama, files)
    same, mean = mean_llama(files)
    assert same == vocabulary
    assert not np.array_equal(one["blk.0.attn_q.weight"], two["blk.0.attn_q.weight"])
    for name, values in mean.items():
        np.testing.assert_allclose(values, (one[name] + two[name]) / 2, rtol=1e-6, atol=1e-7)
    wider = tmp_path / "wider.gguf"
    write(parse([*SMALL, "--ff", "128", "--out", str(wider)]))
    with pytest.raises(ValueError, match="other tensors"):
        mean_llama([files[0], wider])
    with pytest.raises(ValueError, match="another vocabulary"):
        mean_llama([files[0], MODELS / "inferflux-demo.gguf"])
