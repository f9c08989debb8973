"""The head of a GGUF file: digest, names, and the tokenizer cut out of it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from inferflux.common.errors import InvalidArgument
from inferflux.common.llama.vocab import Vocab
from inferflux.worker.mmproj_file import read_projection
from inferflux.worker.model_file import ModelFileError, read_model_file

DEMO_MODEL = Path(__file__).parents[3] / "models" / "inferflux-demo.gguf"


def write_model(
    path: Path, *, scale: float = 1.0, name: str = "small", template: str = "{{ messages }}"
) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    letters = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*letters, "<|end|>"])
    writer.add_token_types([1] * len(letters) + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(len(letters))
    writer.add_chat_template(template)
    writer.add_tensor("token_embd.weight", np.full((4, 8), scale, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_tokenizer_part_loads_by_itself_and_tokenizes(tmp_path: Path) -> None:
    model = read_model_file(write_model(tmp_path / "m.gguf"))
    (tmp_path / "tokenizer.gguf").write_bytes(model.tokenizer)
    vocab = Vocab.load(tmp_path / "tokenizer.gguf")
    ids = vocab.tokenize(b"abc<|end|>", add_special=False, parse_special=True)
    assert b"".join(vocab.piece(i) for i in ids[:-1]) == b"abc"
    assert ids[-1] in vocab.eog
    assert vocab.chat_template == "{{ messages }}"
    vocab.close()


def test_names_and_size_are_read(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    model = read_model_file(path)
    assert (model.name, model.architecture) == ("small", "llama")
    assert model.size_bytes == path.stat().st_size


def test_the_digest_tells_metadata_apart_and_is_repeatable(tmp_path: Path) -> None:
    one = read_model_file(write_model(tmp_path / "1.gguf"))
    same = read_model_file(write_model(tmp_path / "2.gguf"))
    other = read_model_file(write_model(tmp_path / "3.gguf", name="other"))
    assert one.digest == same.digest != other.digest


def test_the_digest_tells_weights_apart(tmp_path: Path) -> None:
    one = read_model_file(write_model(tmp_path / "1.gguf"))
    tuned = read_model_file(write_model(tmp_path / "2.gguf", scale=2.0))
    assert one.size_bytes == tuned.size_bytes
    assert one.digest != tuned.digest


def test_the_digest_tells_apart_models_that_differ_in_a_hundredth_of_their_weights(tmp_path: Path) -> None:
    whole = bytearray(DEMO_MODEL.read_bytes())
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    before = read_model_file(path).digest
    first, n = len(whole) * 3 // 4, len(whole) // 100
    whole[first : first + n] = bytes(n)
    path.write_bytes(whole)
    assert read_model_file(path).digest != before


@pytest.mark.parametrize("keep", [0, 3, 20, 100, 2000])
def test_a_damaged_file_is_a_clear_error(tmp_path: Path, keep: int) -> None:
    whole = write_model(tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:keep])
    with pytest.raises(ModelFileError, match=r"cut\.gguf"):
        read_model_file(cut)


def test_what_is_no_gguf_says_so(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello, this is text and long enough to hold a header")
    with pytest.raises(ModelFileError, match="not a GGUF"):
        read_model_file(other)
    with pytest.raises(ModelFileError, match="missing"):
        read_model_file(tmp_path / "missing.gguf")


def test_an_empty_file_and_a_folder_are_named_as_what_they_are(tmp_path: Path) -> None:
    empty = tmp_path / "empty.gguf"
    empty.touch()
    for path, why in ((empty, "the file is empty"), (tmp_path, "it is a folder")):
        with pytest.raises(ModelFileError, match=why):
            read_model_file(path)
    with pytest.raises(InvalidArgument, match="the file is empty"):
        read_projection(empty, field="mmproj_path")
