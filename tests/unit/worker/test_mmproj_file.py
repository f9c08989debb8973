"""The file of a projector, before an engine loads it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from harness.gguf_files import tiny_model
from harness.projectors import tiny_projector

from inferflux.common.contract.errors import InvalidArgument
from inferflux.worker.files.gguf_header import parse_header
from inferflux.worker.files.mmproj_file import read_projection


def test_a_projector_says_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(tiny_projector(32).data())
    found = read_projection(path, field="mmproj")
    assert found.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.size_bytes == path.stat().st_size


def test_its_skeleton_has_all_but_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    whole = tiny_projector(32)
    path.write_bytes(whole.data())
    skeleton = read_projection(path, field="mmproj").skeleton
    found = parse_header(skeleton, keep_tensors=True)
    arrays = {"clip.vision.image_mean", "clip.vision.image_std"}
    told = parse_header(whole.data()).metadata
    assert {k: v for k, v in found.metadata.items() if k not in arrays} == {
        k: v for k, v in told.items() if k not in arrays
    }
    assert set(found.tensors) == set(whole.tensors)
    assert all(tensor.shape == (1,) for tensor in found.tensors.values())
    assert len(skeleton) < len(whole.data()) // 10


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
