"""The head of a GGUF file: digest, names, and the tokenizer cut out of it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from harness.gguf_files import tiny_model

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.llama.vocab import Vocab
from inferflux.worker.files.mmproj_file import read_projection
from inferflux.worker.files.model_file import ModelFileError, read_model_file

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


def write_parts(folder: Path, n_files: int = 3, scale: float = 1.0) -> list[Path]:
    """The tiny model in several files."""
    folder.mkdir(exist_ok=True)
    parts = tiny_model().in_files(n_files)
    parts[-1] = parts[-1].filled(scale)
    return [
        part.write(folder / f"tiny-{number:05d}-of-{n_files:05d}.gguf")
        for number, part in enumerate(parts, 1)
    ]


def test_a_model_in_several_files_is_as_one_in_a_single_file(tmp_path: Path) -> None:
    whole = read_model_file(tiny_model().write(tmp_path / "whole.gguf"))
    paths = write_parts(tmp_path)
    for named in paths:
        model = read_model_file(named)
        assert model.path == paths[0]
        assert model.facts == whole.facts
        assert model.size_bytes == sum(path.stat().st_size for path in paths)
        assert model.tokenizer == whole.tokenizer, "what tells of other files is left out"
    (tmp_path / "tokenizer.gguf").write_bytes(model.tokenizer)
    Vocab.load(tmp_path / "tokenizer.gguf").close()


def test_each_of_several_files_counts_for_the_digest(tmp_path: Path) -> None:
    digests = [read_model_file(write_parts(tmp_path / f"{scale}", scale=scale)[0]).digest for scale in (1, 2)]
    assert digests[0] != digests[1]
    assert read_model_file(write_parts(tmp_path / "4", n_files=4)[0]).digest not in digests


def test_a_file_that_is_missing_or_called_wrongly_is_named(tmp_path: Path) -> None:
    first, second, third = write_parts(tmp_path)
    second.rename(tmp_path / "away.gguf")
    with pytest.raises(ModelFileError, match=r"tiny-00002-of-00003\.gguf: there is no such file"):
        read_model_file(third)
    with pytest.raises(ModelFileError, match=r"it must be called NAME-00001-of-00003\.gguf"):
        read_model_file(tmp_path / "away.gguf")
    second.write_bytes(third.read_bytes()[:50])
    with pytest.raises(ModelFileError, match=r"tiny-00002-of-00003\.gguf: the GGUF header is cut off"):
        read_model_file(first)
    first.rename(tmp_path / "tiny-00004-of-00003.gguf")
    with pytest.raises(ModelFileError, match="is not a shard of any model"):
        read_model_file(tmp_path / "tiny-00004-of-00003.gguf")
