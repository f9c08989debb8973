"""A model's projector: turns pixels of images and samples of sounds into what the model computes cells from.

It never reads a file of theirs: the gateway has decoded it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferflux.common.contract.requests.images import FEWEST_TOKENS, MOST_TOKENS
from inferflux.common.llama.mtmd import IMAGE, TEXT, Layout, Mtmd, MtmdError, Shape
from inferflux.common.llama.native import first_log_error
from inferflux.common.llama.vocab import Vocab
from inferflux.v1 import engine_pb2

Embeddings = NDArray[np.float32]

# Sizes that an image is tried in when the projector is loaded.
_TRIAL_SIZES = ((64, 64), (640, 160), (160, 640), (1024, 1024), (1536, 999))
# Seconds of sounds.
_TRIAL_S = (2, 31)
_SAMPLE_BYTES = 4
_AXES = 4
# glibc fills what it gives out with the complement of this byte, what is freed with it: see mallopt(3).
_M_PERTURB: Final = -6
_GIVES_ZEROS: Final = 0xFF

_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)


@contextmanager
def _zeroed_memory() -> Iterator[None]:
    """Zero all memory that any thread allocates meanwhile, with glibc; elsewhere do nothing. One at a time.

    llama.cpp's graph for Pixtral multiplies memory that nothing was written to by zero, to clear it. Numbers
    that are not finite stay so, and with them all that comes out.
    """
    if _mallopt is None:
        yield
        return
    _mallopt(_M_PERTURB, _GIVES_ZEROS)
    try:
        yield
    finally:
        _mallopt(_M_PERTURB, 0)


class ProjectorError(Exception):
    """The projector cannot be used with the model; says why."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedRun:
    """A run of an image's cells.

    Attributes:
        embeddings: of shape (cells, width of the model).
        n_positions: how far the position after the run is from that of its first cell.
        plane: of shape (3, cells): how far each cell is from the first one in time, down and across; None:
            the cells follow each other.
        is_whole: whether the cells look at each other (non-causal attention): one step computes all.
    """

    embeddings: Embeddings
    n_positions: int
    plane: NDArray[np.int32] | None = None
    is_whole: bool = False

    def offsets(self, first: int, n: int) -> NDArray[np.int32]:
        """Offsets of `n` cells, from the cell `first` on, to the run's first position: of shape (dimensions,
        n)."""
        if self.plane is None:
            return np.arange(first, first + n, dtype=np.int32)[None]
        return self.plane[:, first : first + n]


class Projector:
    """A model's projector. One thread may call it, beside the one that computes the model.

    Args:
        path: its file. skeleton: what gateways count tokens with.
        vocab: the model's vocabulary, loaded without the model, as gateways have it.
        width: of the model's embeddings.
        most_whole: cells that one step may compute where they look at each other.
        is_known: whether it is not tried whether it encodes: an engine before this one has encoded something.

    Attributes:
        flash_attention: whether it is in use.
        has_plane: whether cells have positions in several dimensions (M-RoPE).

    Raises:
        ProjectorError: no projector, one of another model, or one whose images cannot be served; says why.
    """

    def __init__(
        self,
        path: str,
        model: Any,
        *,
        skeleton: str,
        vocab: Vocab,
        width: int,
        most_whole: int,
        threads: int,
        flash_attention: bool,
        use_gpu: bool,
        is_known: bool = False,
    ) -> None:
        self._width = width
        self._most_whole = most_whole
        self.flash_attention = flash_attention
        try:
            with _zeroed_memory():
                self._mtmd = Mtmd(
                    path, model, threads=threads, flash_attention=flash_attention, use_gpu=use_gpu
                )
            self.has_plane = bool(self._mtmd.library.mtmd_decode_use_mrope(self._mtmd.context))
            counter = Mtmd(skeleton, vocab.model)
            try:
                for shape in self._trial_shapes():
                    self._try(shape, counter, vocab)
            finally:
                counter.close()
            if not is_known:
                self.try_encoding()
        except MtmdError as error:
            raise ProjectorError(str(error)) from None

    def close(self) -> None:
        self._mtmd.close()

    @property
    def takes_images(self) -> bool:
        return self._mtmd.takes_images

    @property
    def takes_audio(self) -> bool:
        return self._mtmd.takes_audio

    def _trial_shapes(self) -> list[Shape]:
        shapes: list[Shape] = list(_TRIAL_SIZES) if self.takes_images else []
        if self.takes_audio:
            shapes += [seconds * self._mtmd.sample_rate for seconds in _TRIAL_S]
        return shapes

    def try_encoding(self) -> None:
        """Encode one image and one sound: a file that ends the process over that ends it now.

        Raises:
            ProjectorError: it cannot.
        """
        if self.takes_images:
            width, height = _TRIAL_SIZES[0]
            rgb = bytes(3 * width * height)
            self.encode(engine_pb2.EngineImage(width=width, height=height, rgb=rgb))
        if self.takes_audio:
            samples = _TRIAL_S[0] * self._mtmd.sample_rate
            self.encode(engine_pb2.EngineImage(pcm=bytes(_SAMPLE_BYTES * samples)))

    def encode(self, image: engine_pb2.EngineImage) -> Sequence[EncodedRun]:
        """The runs of cells of an image, or of a sound.

        Raises:
            ProjectorError: libmtmd failed.
        """
        shape: Shape = len(image.pcm) // _SAMPLE_BYTES or (image.width, image.height)
        try:
            with self._mtmd.chunks([shape], image.pcm or image.rgb) as chunks:
                return [self._encoded(c) for c in chunks if self._mtmd.type_of(c) != TEXT]
        except MtmdError as error:
            raise ProjectorError(str(error)) from None

    def _encoded(self, chunk: Any) -> EncodedRun:
        mtmd = self._mtmd.library
        n = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        embeddings = self._embeddings(chunk, n)
        if not np.isfinite(embeddings).all():
            raise ProjectorError("the projector gives numbers that are not finite")
        is_whole = self._is_whole(chunk)
        if is_whole and n > self._most_whole:
            raise ProjectorError(self._too_whole(n))
        n_positions = int(mtmd.mtmd_input_chunk_get_n_pos(chunk))
        return EncodedRun(embeddings, n_positions, self._plane(chunk, n), is_whole)

    def _embeddings(self, chunk: Any, n: int) -> Embeddings:
        mtmd, context = self._mtmd.library, self._mtmd.context
        with _zeroed_memory():  # a larger image has its graph's memory allocated anew
            failed = mtmd.mtmd_encode_chunk(context, chunk) != 0
        if failed:
            raise ProjectorError(first_log_error("libmtmd could not encode it"))
        address = ctypes.cast(mtmd.mtmd_get_output_embd(context), ctypes.c_void_p).value
        if not address:
            raise ProjectorError("libmtmd gave no embeddings")
        raw = (ctypes.c_float * (n * self._width)).from_address(address)
        embeddings: Embeddings = np.ctypeslib.as_array(raw).reshape(n, self._width).copy()
        return embeddings

    def _is_whole(self, chunk: Any) -> bool:
        return bool(self._mtmd.library.mtmd_decode_use_non_causal(self._mtmd.context, chunk))

    def _too_whole(self, n: int) -> str:
        return (
            f"the {n} cells of an image look at each other, and a step computes {self._most_whole}: "
            "INFERFLUX_WORKER_BATCH_TOKENS is too small, or the projector is not served"
        )

    def _plane(self, chunk: Any, n: int) -> NDArray[np.int32] | None:
        """See `EncodedRun`."""
        if not self.has_plane or self._mtmd.type_of(chunk) != IMAGE:
            return None
        mtmd = self._mtmd.library
        image = mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        found = (mtmd.mtmd_decoder_pos * n)()
        mtmd.mtmd_helper_image_get_decoder_pos(image, 0, found)
        places = np.frombuffer(found, np.uint32).reshape(n, _AXES).astype(np.int32)
        time, across, down, other = places.T
        if other.any() or time.any():
            raise ProjectorError("its cells have positions of a kind that is not served")
        return np.ascontiguousarray(np.stack([time, down, across]))

    def _try(self, shape: Shape, counter: Mtmd, vocab: Vocab) -> None:
        """See that an image or a sound of this size can be served.

        Raises:
            MtmdError, ProjectorError: it cannot.
        """
        with self._mtmd.chunks([shape, shape]) as chunks:
            pieces = [self._mtmd.piece(chunk) for chunk in chunks]
            runs = [chunk for chunk in chunks if self._mtmd.type_of(chunk) != TEXT]
            cells = [int(self._mtmd.library.mtmd_input_chunk_get_n_tokens(run)) for run in runs]
            for run, n in zip(runs, cells, strict=True):
                self._plane(run, n)  # raises where it cannot be served
                if self._is_whole(run) and n > self._most_whole:
                    raise ProjectorError(self._too_whole(n))
        layout = self._mtmd.layout(shape)
        if _joined(pieces) != _joined(layout + layout):
            raise ProjectorError("cells depend on what is before their image, which is not served")
        if counter.layout(shape) != layout:
            raise ProjectorError("its tokens cannot be counted without its weights")
        for piece in layout:
            if isinstance(piece, int) and not FEWEST_TOKENS <= piece <= MOST_TOKENS:
                message = f"a run takes {piece} tokens; {FEWEST_TOKENS} to {MOST_TOKENS} are served"
                raise ProjectorError(message)
            if not isinstance(piece, int) and any(not 0 <= token < vocab.size for token in piece):
                raise ProjectorError("the vocabulary lacks tokens that it puts around images and sounds")


def _joined(layout: Layout) -> Layout:
    """The same with token ids that follow each other as one piece."""
    joined: Layout = []
    for piece in layout:
        last = joined[-1] if joined else None
        if isinstance(last, list) and isinstance(piece, list):
            joined[-1] = last + piece
        else:
            joined.append(piece)
    return joined
