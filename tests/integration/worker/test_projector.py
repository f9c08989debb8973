"""libmtmd on a projector of random weights: what it encodes, and which are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from harness.gguf_files import Gguf
from harness.projectors import (
    IMAGE_TOKENS,
    audio_projector,
    non_causal_projector,
    plane_projector,
    sized_projector,
    sliced_projector,
    tiny_projector,
)
from harness.worker import DEMO_MODEL

from inferflux.common.llama.mtmd import Mtmd
from inferflux.common.llama.native import llama
from inferflux.common.llama.vocab import Vocab
from inferflux.v1 import engine_pb2
from inferflux.worker.engine.media.projector import Projector, ProjectorError
from inferflux.worker.files.mmproj_file import read_projection

_WIDTH = 256


@pytest.fixture(scope="module")
def model() -> Iterator[object]:
    loaded = llama.llama_model_load_from_file(str(DEMO_MODEL).encode(), llama.llama_model_default_params())
    yield loaded
    llama.llama_model_free(loaded)


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    loaded = Vocab.load(DEMO_MODEL)
    yield loaded
    loaded.close()


def opened(model: object, vocab: Vocab, made: Gguf, folder: Path, *, most_whole: int = 512) -> Projector:
    path, skeleton = folder / "mmproj.gguf", folder / "skeleton.gguf"
    path.write_bytes(made.data())
    skeleton.write_bytes(read_projection(path, field="mmproj").skeleton)
    return Projector(
        str(path),
        model,
        skeleton=str(skeleton),
        vocab=vocab,
        width=_WIDTH,
        most_whole=most_whole,
        threads=1,
        flash_attention=False,
        use_gpu=False,
    )


def shown(width: int, height: int, rgb: bytes) -> engine_pb2.EngineImage:
    return engine_pb2.EngineImage(width=width, height=height, rgb=rgb)


@pytest.fixture(scope="module")
def projector(model: object, vocab: Vocab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Projector]:
    made = opened(model, vocab, tiny_projector(_WIDTH), tmp_path_factory.mktemp("projector"))
    yield made
    made.close()


@pytest.mark.parametrize("samples", [1, 2, 3, 159, 160, 161, 399, 400, 401, 16_000])
def test_a_sound_of_any_length_is_encoded_or_refused(
    model: object, vocab: Vocab, tmp_path: Path, samples: int
) -> None:
    made = opened(model, vocab, audio_projector(_WIDTH), tmp_path)
    sound = engine_pb2.EngineImage(pcm=bytes(4 * samples))
    if samples == 1:
        with pytest.raises(ProjectorError, match="a sound of 1 samples"):
            made.encode(sound)
    else:
        assert made.encode(sound)
    made.close()


@pytest.mark.parametrize(("width", "height"), [(0, 0), (0, 5), (4, 3)])
def test_pixels_that_are_not_as_many_as_they_say_are_refused(
    projector: Projector, width: int, height: int
) -> None:
    with pytest.raises(ProjectorError, match=r"is none|should be"):
        projector.encode(shown(width, height, bytes(3)))


@pytest.mark.parametrize("size", [(1, 1), (1, 2000), (2000, 1), (2, 3), (63, 65)])
def test_an_image_of_any_size_is_encoded(projector: Projector, size: tuple[int, int]) -> None:
    width, height = size
    assert projector.encode(shown(width, height, bytes(3 * width * height)))


def test_an_image_is_encoded_alike_each_time_and_another_one_otherwise(projector: Projector) -> None:
    dark, light = bytes(3 * 64 * 64), bytes([255]) * (3 * 64 * 64)
    (first,) = projector.encode(shown(64, 64, dark))
    (again,) = projector.encode(shown(64, 64, dark))
    (other,) = projector.encode(shown(64, 64, light))
    assert first.embeddings.shape == (IMAGE_TOKENS, _WIDTH)
    assert np.array_equal(first.embeddings, again.embeddings)
    assert not np.allclose(first.embeddings, other.embeddings)


@pytest.mark.parametrize(
    ("made", "most_whole", "why"),
    [
        (tiny_projector(_WIDTH // 2), 512, "mismatch"),
        (Gguf(tiny_projector(_WIDTH).metadata, {}), 512, "tensor"),
        (non_causal_projector(_WIDTH), IMAGE_TOKENS - 1, "INFERFLUX_WORKER_BATCH_TOKENS"),
        (non_causal_projector(_WIDTH, pooled=2), 512, "takes 4 tokens"),
        (sliced_projector(_WIDTH), 512, "vocabulary lacks tokens"),
    ],
    ids=["of another model", "no tensors", "more than a step", "few cells", "tokens that are not there"],
)
def test_a_projector_that_cannot_be_served_says_why(
    model: object, vocab: Vocab, tmp_path: Path, made: Gguf, most_whole: int, why: str
) -> None:
    with pytest.raises(ProjectorError, match=why):
        opened(model, vocab, made, tmp_path, most_whole=most_whole)


@pytest.mark.parametrize("make", [tiny_projector, sized_projector, plane_projector, non_causal_projector])
def test_the_tokens_of_images_of_any_size_are_counted_without_weights(
    model: object, vocab: Vocab, tmp_path: Path, make: Callable[[int], Gguf]
) -> None:
    projector = opened(model, vocab, make(_WIDTH), tmp_path)
    counter = Mtmd(tmp_path / "skeleton.gguf", vocab.model)
    for width, height in ((1, 1), (2, 1536), (1536, 1), (333, 777), (1535, 1536)):
        runs = projector.encode(shown(width, height, bytes(3 * width * height)))
        counted = [piece for piece in counter.layout((width, height)) if isinstance(piece, int)]
        assert [run.embeddings.shape[0] for run in runs] == counted
    counter.close()
    projector.close()
