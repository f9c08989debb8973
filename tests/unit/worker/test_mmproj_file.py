"""The file of a projector, before an engine loads it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from harness.gguf_files import tiny_model
from harness.projectors import IMAGE_TOKENS, tiny_projector

from inferflux.common.errors import InvalidArgument
from inferflux.worker.mmproj_file import read_projection


def test_a_projector_says_its_digest_and_how_many_tokens_an_image_has(tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(tiny_projector(32).data())
    found = read_projection(path, field="mmproj")
    assert found.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (found.size_bytes, found.image_tokens) == (path.stat().st_size, IMAGE_TOKENS)


def test_of_another_kind_only_the_engine_knows(tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(tiny_projector(32, kind="qwen2vl_merger").data())
    assert read_projection(path, field="mmproj").image_tokens == 0


@pytest.mark.parametrize("data", [b"", b"GGUF", b"text", tiny_model().data()])
def test_a_file_that_is_no_projector_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(data)
    with pytest.raises(InvalidArgument) as caught:
        read_projection(path, field="mmproj")
    assert caught.value.field == "mmproj"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="No such file"):
        read_projection(tmp_path / "none.gguf", field="mmproj")
