"""libmtmd on a projector of random weights: how many tokens an image has, and what it encodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness.projectors import IMAGE_TOKENS, non_causal_projector, tiny_projector
from harness.worker import DEMO_MODEL

from inferflux.common.llama.native import llama
from inferflux.worker.engine.projector import Projector, ProjectorError

_WIDTH = 256


@pytest.fixture(scope="module")
def model() -> Iterator[object]:
    loaded = llama.llama_model_load_from_file(str(DEMO_MODEL).encode(), llama.llama_model_default_params())
    yield loaded
    llama.llama_model_free(loaded)


def opened(model: object, path: Path) -> Projector:
    return Projector(str(path), model, width=_WIDTH, threads=1, flash_attention=False, use_gpu=False)


@pytest.fixture(scope="module")
def projector(model: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Projector]:
    path = tmp_path_factory.mktemp("projector") / "mmproj.gguf"
    path.write_bytes(tiny_projector(_WIDTH).data())
    made = opened(model, path)
    yield made
    made.close()


def test_an_image_has_as_many_tokens_whatever_its_size(projector: Projector) -> None:
    assert projector.shape.tokens == IMAGE_TOKENS
    for width, height in ((10, 10), (300, 20)):
        assert projector.encode(width, height, bytes(3 * width * height)).shape == (IMAGE_TOKENS, _WIDTH)


def test_an_image_is_encoded_alike_each_time_and_another_one_otherwise(projector: Projector) -> None:
    dark, light = bytes(3 * 64 * 64), bytes([255]) * (3 * 64 * 64)
    first = projector.encode(64, 64, dark)
    other = projector.encode(64, 64, light)
    assert np.array_equal(first, projector.encode(64, 64, dark))
    assert not np.allclose(first, other)


def test_a_file_that_is_no_projector_is_refused(model: object, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF nothing")
    with pytest.raises(ProjectorError):
        opened(model, path)


def test_a_projector_whose_cells_look_at_each_other_is_refused_by_name(model: object, tmp_path: Path) -> None:
    path = tmp_path / "gemma3.gguf"
    path.write_bytes(non_causal_projector(_WIDTH).data())
    with pytest.raises(ProjectorError, match="non-causal"):
        opened(model, path)


def test_a_projector_of_another_model_is_refused(model: object, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(tiny_projector(_WIDTH // 2).data())
    with pytest.raises(ProjectorError):
        opened(model, path)
