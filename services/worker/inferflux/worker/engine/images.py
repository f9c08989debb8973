"""Encoded images: asked for by requests, encoded in a thread beside the steps, kept by their ids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Several
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inferflux.v1 import engine_pb2, generation_pb2

from .projector import ProjectorError

Embeddings = NDArray[np.float32]


class Encodes(Protocol):
    """Makes embeddings of pixels; `Projector` does."""

    def encode(self, width: int, height: int, rgb: bytes) -> Embeddings: ...


@dataclass(slots=True, eq=False)
class ImageSpan:
    """An image in a prompt.

    Attributes:
        first, end: positions of its cells.
        embeddings: of shape (cells, width of the model); None until it is encoded.
        error: why it will not be.
    """

    id: str
    object: str
    first: int
    end: int
    embeddings: Embeddings | None = None
    error: str = ""


class SequenceImages:
    """The images of one request, in order.

    A step of a sequence holds tokens or cells of one image, not both: llama.cpp takes either.
    """

    def __init__(self, spans: Several[ImageSpan] = ()) -> None:
        self._spans = list(spans)

    def __bool__(self) -> bool:
        return bool(self._spans)

    @property
    def is_ready(self) -> bool:
        """Whether all are encoded."""
        return all(span.embeddings is not None for span in self._spans)

    @property
    def error(self) -> str:
        """Why one of them will not be; "" if all may."""
        return next((span.error for span in self._spans if span.error), "")

    def at(self, position: int) -> ImageSpan | None:
        """The image that has the cell of this position."""
        return next((span for span in self._spans if span.first <= position < span.end), None)

    def computable(self, position: int, n: int) -> int:
        """How many of the `n` cells from `position` on one step may hold."""
        for span in self._spans:
            if position < span.end:
                limit = span.first if position < span.first else span.end
                return min(n, limit - position)
        return n

    def whole(self, position: int) -> int:
        """`position`, or the beginning of the image that it is inside of."""
        span = self.at(position)
        return position if span is None else span.first


class Images:
    """The images of an engine.

    Args:
        encoder: None where the model takes no images.
        max_bytes: of embeddings that are kept after their requests have ended; the least used go first.
    """

    def __init__(self, encoder: Encodes | None, *, max_bytes: int) -> None:
        self._encoder = encoder
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, Embeddings] = OrderedDict()
        self._kept_bytes = 0
        # Images that are asked for, by object, and those that are being encoded.
        self._asked: dict[str, list[ImageSpan]] = {}
        self._encoding: dict[str, Future[Embeddings]] = {}
        self._news: list[str] = []
        self._encoded = self._hits = 0
        self._thread = ThreadPoolExecutor(1, "images") if encoder is not None else None

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def begin(self, images: Several[generation_pb2.PromptImage]) -> SequenceImages:
        """The images of a request, those that are kept encoded already; the others are asked for."""
        return SequenceImages([self._begun(image) for image in images])

    def _begun(self, image: generation_pb2.PromptImage) -> ImageSpan:
        span = ImageSpan(image.id, image.object, image.position, image.position + image.tokens)
        kept = self._kept.get(image.id)
        if kept is not None:
            self._kept.move_to_end(image.id)
            self._hits += 1
            span.embeddings = kept
        elif self._encoder is None:
            span.error = "this engine takes no images"
        else:
            if image.object not in self._asked:
                self._news.append(image.object)
            self._asked.setdefault(image.object, []).append(span)
        return span

    def take_wanted(self) -> list[str]:
        """Objects that were asked for since the last call."""
        taken, self._news = self._news, []
        return taken

    def receive(self, image: engine_pb2.EngineImage) -> None:
        """Encode an image that was asked for."""
        spans = self._asked.get(image.object)
        if not spans or image.object in self._encoding:
            return
        if image.error or self._thread is None or self._encoder is None:
            self._fail(image.object, image.error or "this engine takes no images")
            return
        self._encoding[image.object] = self._thread.submit(
            self._encoder.encode, image.width, image.height, image.rgb
        )

    def settle(self) -> None:
        """Take what is encoded by now."""
        for name in [name for name, future in self._encoding.items() if future.done()]:
            try:
                embeddings = self._encoding.pop(name).result()
            except (ProjectorError, MemoryError) as error:
                self._fail(name, str(error) or "it takes too much memory")
                continue
            self._encoded += 1
            spans = self._asked.pop(name, [])
            for span in spans:
                if embeddings.shape[0] == span.end - span.first:
                    span.embeddings = embeddings
                else:
                    span.error = "it was encoded to another number of tokens"
            if spans:
                self._keep(spans[0].id, embeddings)

    def write_stats(self, stats: engine_pb2.StepStats) -> None:
        """Write what happened since the last call, and what is kept."""
        stats.images_encoded, stats.image_hits = self._encoded, self._hits
        stats.image_bytes = self._kept_bytes
        self._encoded = self._hits = 0

    def _fail(self, name: str, why: str) -> None:
        for span in self._asked.pop(name, []):
            span.error = why

    def _keep(self, id_: str, embeddings: Embeddings) -> None:
        if embeddings.nbytes > self._max_bytes:
            return
        if id_ not in self._kept:
            self._kept[id_] = embeddings
            self._kept_bytes += embeddings.nbytes
        while self._kept_bytes > self._max_bytes:
            _, gone = self._kept.popitem(last=False)
            self._kept_bytes -= gone.nbytes
