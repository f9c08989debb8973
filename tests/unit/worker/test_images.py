"""Images of an engine: asked for, encoded beside the steps, kept by their ids."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from inferflux.common.contract.requests.images import image_id
from inferflux.v1 import engine_pb2, generation_pb2
from inferflux.worker.engine.media.images import Images, ImageSpan, SequenceImages
from inferflux.worker.engine.media.projector import EncodedRun, ProjectorError

N, WIDTH = 16, 4
IMAGE_BYTES = N * WIDTH * 4


class Encoder:
    """Gives embeddings that say the width of the image."""

    def __init__(self) -> None:
        self.encoded = 0
        self.error = ""

    has_plane = False

    def encode(self, image: engine_pb2.EngineImage) -> list[EncodedRun]:
        self.encoded += 1
        if self.error:
            raise ProjectorError(self.error)
        return [EncodedRun(np.full((N, WIDTH), image.width, np.float32), N)]


def named(name: str, *, tokens: int = N) -> generation_pb2.PromptImage:
    return generation_pb2.PromptImage(id=image_id(name.encode()), object=name, position=2, tokens=tokens)


def given(name: str, width: int = 1) -> engine_pb2.EngineImage:
    return engine_pb2.EngineImage(object=name, width=width, height=1, rgb=bytes(3 * width))


def settled(images: Images, condition: Callable[[], object]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        images.settle()
        threading.Event().wait(0.001)


def test_an_image_is_asked_for_once_and_encoded_once() -> None:
    encoder = Encoder()
    images = Images(encoder, max_bytes=1 << 20)
    one, two = images.begin([named("a")]), images.begin([named("a")])
    assert images.take_wanted() == ["a"]
    assert images.take_wanted() == []
    images.receive(given("a"))
    images.receive(given("a"))
    settled(images, lambda: one.is_ready and two.is_ready)
    assert images.begin([named("a")]).is_ready
    assert images.take_wanted() == []
    stats = engine_pb2.StepStats()
    images.write_stats(stats)
    assert (encoder.encoded, stats.images_encoded, stats.image_hits) == (1, 1, 1)
    assert stats.image_bytes == IMAGE_BYTES
    images.close()


def test_the_least_used_images_leave_first() -> None:
    images = Images(Encoder(), max_bytes=2 * IMAGE_BYTES)
    for name in ("a", "b"):
        begun = images.begin([named(name)])
        images.receive(given(name))
        settled(images, partial(getattr, begun, "is_ready"))
    assert images.begin([named("a")]).is_ready
    begun = images.begin([named("c")])
    images.receive(given("c"))
    settled(images, lambda: begun.is_ready)
    assert images.begin([named("a")]).is_ready
    assert not images.begin([named("b")]).is_ready
    images.close()


@pytest.mark.parametrize("fault", ["reading", "encoding", "size"])
def test_an_image_that_cannot_be_had_says_why(fault: str) -> None:
    encoder = Encoder()
    images = Images(encoder, max_bytes=1 << 20)
    begun = images.begin([named("a", tokens=N - 1 if fault == "size" else N)])
    image = given("a")
    if fault == "reading":
        image.error = "reading failed"
    elif fault == "encoding":
        encoder.error = "encoding failed"
    images.receive(image)
    settled(images, lambda: begun.error)
    assert not begun.is_ready
    images.close()


def test_an_engine_without_a_projector_takes_no_images() -> None:
    assert Images(None, max_bytes=0).begin([named("a")]).error


def test_what_was_not_asked_for_is_left_alone() -> None:
    encoder = Encoder()
    images = Images(encoder, max_bytes=1 << 20)
    images.receive(given("a"))
    images.settle()
    images.close()
    assert encoder.encoded == 0


def span(first: int, end: int, run: EncodedRun | None = None) -> ImageSpan:
    return ImageSpan("x", "x", 0, first, end, run)


def test_a_step_ends_where_an_image_begins_or_ends() -> None:
    spans = SequenceImages([span(3, 10), span(10, 14)])
    assert [spans.computable(at, 20) for at in (0, 3, 5, 10, 14)] == [3, 7, 5, 4, 20]
    assert spans.computable(5, 2) == 2
    assert [spans.shareable(at) for at in (2, 3, 4, 10, 12, 14)] == [2, 3, 3, 10, 10, 14]


def test_cells_that_look_at_each_other_are_computed_together() -> None:
    whole = EncodedRun(np.zeros((7, WIDTH), np.float32), 7, is_whole=True)
    one_by_one = EncodedRun(np.zeros((4, WIDTH), np.float32), 4)
    spans = SequenceImages([span(3, 10, whole), span(10, 14, one_by_one)])
    assert [spans.indivisible(at) for at in (0, 3, 10, 14)] == [0, 7, 0, 0]


def test_cells_in_a_plane_take_fewer_positions_than_they_are() -> None:
    rows, columns = 2, 3
    down, across = np.divmod(np.arange(rows * columns, dtype=np.int32), columns)
    plane = np.stack([np.zeros_like(down), down, across]).astype(np.int32)
    run = EncodedRun(np.zeros((rows * columns, WIDTH), np.float32), columns, plane)
    spans = SequenceImages([span(2, 8, run), span(9, 15, run)], has_plane=True)
    assert [spans.position(at) for at in (0, 1, 2, 7, 8, 9, 14, 15, 16)] == [0, 1, 2, 2, 5, 6, 6, 9, 10]
    assert [spans.shareable(at) for at in (1, 2, 5, 8, 16)] == [1, 2, 2, 2, 2]
    assert run.offsets(2, 3).tolist() == [[0, 0, 0], [0, 1, 1], [2, 0, 1]]


def test_each_part_of_an_image_gets_its_cells() -> None:
    class Slicing(Encoder):
        def encode(self, image: engine_pb2.EngineImage) -> list[EncodedRun]:
            (run,) = super().encode(image)
            return [run, EncodedRun(run.embeddings + 1, N)]

    images = Images(Slicing(), max_bytes=1 << 20)
    parts = [named("a"), named("a")]
    parts[1].part, parts[1].position = 1, 2 + N
    begun = images.begin(parts)
    assert images.take_wanted() == ["a"]
    images.receive(given("a"))
    settled(images, lambda: begun.is_ready)
    spans = [begun.at(2), begun.at(2 + N)]
    assert [s.encoded.embeddings[0, 0] for s in spans if s is not None and s.encoded is not None] == [1, 2]
    parts[1].part = 2
    assert images.begin(parts).error
    images.close()
