"""Encoded images and sounds: asked for by requests, encoded beside the steps, kept by their ids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Several
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from inferflux.v1 import engine_pb2, generation_pb2

from .image_note import ImageNote
from .projector import EncodedRun, ProjectorError


class Encodes(Protocol):
    """Makes embeddings of pixels and samples; `Projector` does."""

    @property
    def has_plane(self) -> bool: ...

    def encode(self, image: engine_pb2.EngineImage) -> Several[EncodedRun]: ...


@dataclass(slots=True, eq=False)
class ImageSpan:
    """A run of cells of an image, or a sound, in a prompt.

    Attributes:
        part: which of the image's runs.
        first, end: indices of its cells.
        encoded: None until it is.
        error: why it will not be.
    """

    id: str
    object: str
    part: int
    first: int
    end: int
    encoded: EncodedRun | None = None
    error: str = ""


class SequenceImages:
    """The runs of cells of the images of one request, in order.

    A step of a sequence holds tokens or cells of one run, not both: llama.cpp takes either.

    Args:
        has_plane: whether cells have positions in several dimensions (M-RoPE). A cell's position is then not
            its index in the sequence, from the first image on: only what is before that is shared.
    """

    def __init__(self, spans: Several[ImageSpan] = (), *, has_plane: bool = False) -> None:
        self._spans = list(spans)
        self.has_plane = has_plane and bool(self._spans)

    def __bool__(self) -> bool:
        return bool(self._spans)

    @property
    def is_ready(self) -> bool:
        """True if all are encoded."""
        return all(span.encoded is not None for span in self._spans)

    @property
    def error(self) -> str:
        """Reason why one of them will not be; "" if all may."""
        return next((span.error for span in self._spans if span.error), "")

    def at(self, index: int) -> ImageSpan | None:
        """The run that has the cell of this index."""
        return next((span for span in self._spans if span.first <= index < span.end), None)

    def computable(self, index: int, n: int) -> int:
        """Number of the `n` cells from `index` on that one step may hold."""
        for span in self._spans:
            if index < span.end:
                limit = span.first if index < span.first else span.end
                return min(n, limit - index)
        return n

    def indivisible(self, index: int) -> int:
        """Number of cells from `index` on that one step must hold together; 0: any number."""
        span = self.at(index)
        is_whole = span is not None and span.encoded is not None and span.encoded.is_whole
        return span.end - index if span is not None and is_whole else 0

    def shareable(self, index: int) -> int:
        """Number of the cells before `index` that others may begin with: runs are whole."""
        if self.has_plane:
            return min(index, self._spans[0].first)
        span = self.at(index)
        return index if span is None else span.first

    def position(self, index: int) -> int:
        """The position that llama.cpp has the cell of this index at."""
        if not self.has_plane:
            return index
        position = index
        for span in self._spans:
            run = span.encoded
            if run is None or index < span.first:
                break
            if index < span.end:
                base = position - (index - span.first)
                return base + int(run.offsets(index - span.first, 1)[0, 0])
            position -= (span.end - span.first) - run.n_positions
        return position


class Images:
    """The images of an engine.

    Args:
        encoder: None where the model takes no images.
        max_bytes: of embeddings that are kept after their requests have ended; the least used go first.
        note: names the one that is encoded.
    """

    def __init__(self, encoder: Encodes | None, *, max_bytes: int, note: ImageNote | None = None) -> None:
        self._encoder = encoder
        self._note = note or ImageNote()
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, Several[EncodedRun]] = OrderedDict()
        self._kept_bytes = 0
        # Images that are asked for, by object, and those that are being encoded.
        self._asked: dict[str, list[ImageSpan]] = {}
        self._encoding: dict[str, Future[Several[EncodedRun]]] = {}
        self._news: list[str] = []
        self._encoded = self._hits = 0
        self._thread = ThreadPoolExecutor(1, "images") if encoder is not None else None

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def begin(self, images: Several[generation_pb2.PromptImage]) -> SequenceImages:
        """The images of a request, those that are kept encoded already; the others are asked for."""
        has_plane = self._encoder is not None and self._encoder.has_plane
        return SequenceImages([self._begun(image) for image in images], has_plane=has_plane)

    def _begun(self, image: generation_pb2.PromptImage) -> ImageSpan:
        end = image.position + image.tokens
        span = ImageSpan(image.id, image.object, image.part, image.position, end)
        kept = self._kept.get(image.id)
        if kept is not None:
            self._kept.move_to_end(image.id)
            self._hits += image.part == 0
            _settle(span, kept)
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
        self._encoding[image.object] = self._thread.submit(self._encode, self._encoder, image)

    def _encode(self, encoder: Encodes, image: engine_pb2.EngineImage) -> Several[EncodedRun]:
        with self._note.encoding(image.object):
            return encoder.encode(image)

    def settle(self) -> None:
        """Take what is encoded by now."""
        for name in [name for name, future in self._encoding.items() if future.done()]:
            try:
                runs = self._encoding.pop(name).result()
            except (ProjectorError, MemoryError) as error:
                self._fail(name, str(error) or "it takes too much memory")
                continue
            self._encoded += 1
            spans = self._asked.pop(name, [])
            for span in spans:
                _settle(span, runs)
            if spans:
                self._keep(spans[0].id, runs)

    def stepping(self) -> AbstractContextManager[None]:
        """Within, a step is computed, which may end the engine while an image is encoded."""
        return nullcontext() if self._encoder is None else self._note.stepping()

    def write_stats(self, stats: engine_pb2.StepStats) -> None:
        """Write what happened since the last call, and what is kept."""
        stats.images_encoded, stats.image_hits = self._encoded, self._hits
        stats.image_bytes = self._kept_bytes
        self._encoded = self._hits = 0

    def _fail(self, name: str, why: str) -> None:
        for span in self._asked.pop(name, []):
            span.error = why

    def _keep(self, id_: str, runs: Several[EncodedRun]) -> None:
        n_bytes = _bytes_of(runs)
        if n_bytes > self._max_bytes:
            return
        if id_ not in self._kept:
            self._kept[id_] = runs
            self._kept_bytes += n_bytes
        while self._kept_bytes > self._max_bytes:
            _, gone = self._kept.popitem(last=False)
            self._kept_bytes -= _bytes_of(gone)


def _settle(span: ImageSpan, runs: Several[EncodedRun]) -> None:
    """Give a span its run, if that has the cells which the prompt has for it."""
    if span.part < len(runs) and runs[span.part].embeddings.shape[0] == span.end - span.first:
        span.encoded = runs[span.part]
    else:
        span.error = "it was encoded to other numbers of tokens"


def _bytes_of(runs: Several[EncodedRun]) -> int:
    return sum(run.embeddings.nbytes for run in runs)
