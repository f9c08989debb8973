import shlex
from pathlib import Path

import gguf
import numpy as np
import pytest

from tools.bench_model import RandomWeights, parse, synthetic_vocabulary, write
from tools.llama_gguf import CHAT_TEMPLATE, SPECIALS, Weights

SMALL = shlex.split("--layers 2 --dim 64 --heads 4 --kv-heads 2 --ff 96 --vocab 320 --context 512")


def test_the_file_says_what_was_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "tiny.gguf"
    write(parse([*SMALL, "--quant", "Q8_0", "--out", str(out)]))
    reader = gguf.GGUFReader(out)
    field = {name: value.contents() for name, value in reader.fields.items()}
    assert field["general.architecture"] == "llama"
    assert field["general.name"] == "tiny"
    assert field["llama.block_count"] == 2
    assert field["llama.embedding_length"] == 64
    assert field["llama.attention.head_count"] == 4
    assert field["llama.attention.head_count_kv"] == 2
    assert field["llama.feed_forward_length"] == 96
    assert field["llama.context_length"] == 512
    assert field["tokenizer.chat_template"] == CHAT_TEMPLATE
    assert len(field["tokenizer.ggml.tokens"]) == 320
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 2 + 2 * 9
    assert list(tensors["blk.1.attn_k.weight"].shape) == [64, 32]
    assert tensors["token_embd.weight"].tensor_type == gguf.GGMLQuantizationType.Q8_0
    assert tensors["output_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32


@pytest.mark.parametrize("quant", ["F32", "F16", "Q8_0"])
def test_the_same_seed_gives_the_same_file(tmp_path: Path, quant: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(parse([*SMALL, "--quant", quant, "--out", str(tmp_path / name / "tiny.gguf")]))
    assert (tmp_path / "a/tiny.gguf").read_bytes() == (tmp_path / "b/tiny.gguf").read_bytes()


def test_every_merge_joins_known_tokens_into_a_new_one() -> None:
    vocabulary = synthetic_vocabulary(2_000)
    assert len(set(vocabulary.tokens)) == len(vocabulary.tokens) == 2_000
    assert tuple(vocabulary.tokens[-3:]) == SPECIALS
    known = set(vocabulary.tokens[:256])
    for token, merge in zip(vocabulary.tokens[256:-3], vocabulary.merges, strict=True):
        left, right = merge.split(" ")
        assert {left, right} <= known
        assert left + right == token
        known.add(token)


def test_a_greedy_answer_does_not_end_by_itself() -> None:
    values = RandomWeights(seed=0)("token_embd.weight", (300, 32))
    assert not np.any(values[-3:])
    assert np.all(np.any(values[:-3], axis=1))


def test_a_file_that_is_not_written_to_its_end_does_not_get_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(weights: RandomWeights, name: str, shape: tuple[int, ...]) -> Weights:
        if name.startswith("blk.1."):
            raise KeyboardInterrupt
        return np.ones(shape, dtype=np.float32)

    out = tmp_path / "tiny.gguf"
    monkeypatch.setattr(RandomWeights, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(parse([*SMALL, "--out", str(out)]))
    assert not out.exists()
    monkeypatch.undo()
    write(parse([*SMALL, "--out", str(out)]))
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [("--heads", "5", "heads"), ("--kv-heads", "3", "key/value"), ("--ff", "100", "multiples of 32")],
)
def test_a_shape_that_cannot_be_is_refused(tmp_path: Path, flag: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write(parse([*SMALL, flag, value, "--out", str(tmp_path / "x.gguf")]))
    assert not list(tmp_path.iterdir())


def test_a_vocabulary_smaller_than_its_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 259"):
        synthetic_vocabulary(200)
