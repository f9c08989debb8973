"""libmtmd: turns the pixels of an image into the embeddings that a model's cells are computed from.

It never reads an image's file: the gateway has decoded it.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferflux.common.images import FEWEST_TOKENS, MOST_TOKENS
from inferflux.common.llama.native import capture_log_of, first_log_error, log_errors
from inferflux.v1 import generation_pb2

Embeddings = NDArray[np.float32]

_MARKER = b"<__inferflux_image__>"
_FLASH_ATTENTION = {True: 1, False: 0}
# Sizes that an image is tried in: a projector whose tokens depend on the size is not served.
_TRIAL_SIZES = ((64, 64), (640, 160), (160, 640), (1024, 1024))
_TEXT, _IMAGE = 0, 1


class ProjectorError(Exception):
    """The projector cannot be used with the model; says why."""


class Projector:
    """A model's projector. One thread may call it, beside the one that computes the model.

    Attributes:
        shape: how prompts hold its images.

    Raises:
        ProjectorError: no projector, one of another model, or one whose images do not fill a fixed number of
            cells one after the other.
    """

    def __init__(
        self, path: str, model: Any, *, width: int, threads: int, flash_attention: bool, use_gpu: bool
    ) -> None:
        log_errors.clear()
        self._mtmd: Any = importlib.import_module("llama_cpp.mtmd_cpp")
        capture_log_of(self._mtmd.mtmd_log_set)
        self._width = width
        params = self._mtmd.mtmd_context_params_default()
        params.use_gpu = use_gpu
        params.print_timings = False
        params.n_threads = threads
        params.media_marker = _MARKER
        params.flash_attn_type = _FLASH_ATTENTION[flash_attention]
        params.warmup = False
        self._context = self._mtmd.mtmd_init_from_file(path.encode(), model, params)
        if not self._context:
            raise ProjectorError(first_log_error("it is no projector of this model"))
        if not self._mtmd.mtmd_support_vision(self._context):
            raise ProjectorError("it encodes no images")
        if self._mtmd.mtmd_decode_use_mrope(self._context):
            raise ProjectorError("images take positions in several dimensions (M-RoPE), which is not served")
        self.shape = self._find_shape()

    def close(self) -> None:
        self._mtmd.mtmd_free(self._context)

    def encode(self, width: int, height: int, rgb: bytes) -> Embeddings:
        """The embeddings of an image's tokens, of shape (tokens, width of the model).

        Raises:
            ProjectorError: libmtmd failed, or gave other numbers of tokens than before.
        """
        with self._chunks(width, height, rgb) as chunks:
            image = next((chunk for chunk in chunks if self._type(chunk) == _IMAGE), None)
            if image is None:
                raise ProjectorError("libmtmd made no tokens of the image")
            n = int(self._mtmd.mtmd_input_chunk_get_n_tokens(image))
            if n != self.shape.tokens:
                raise ProjectorError(f"the image has {n} tokens, and not {self.shape.tokens}")
            if self._mtmd.mtmd_encode_chunk(self._context, image) != 0:
                raise ProjectorError(first_log_error("libmtmd could not encode the image"))
            pointer = self._mtmd.mtmd_get_output_embd(self._context)
            address = ctypes.cast(pointer, ctypes.c_void_p).value
            if not address:
                raise ProjectorError("libmtmd gave no embeddings")
            raw = (ctypes.c_float * (n * self._width)).from_address(address)
            embeddings: Embeddings = np.ctypeslib.as_array(raw).reshape(n, self._width).copy()
        if not np.isfinite(embeddings).all():
            raise ProjectorError("the projector gives numbers that are not finite")
        return embeddings

    def _find_shape(self) -> generation_pb2.ImageShape:
        shapes = {self._shape_of(*size) for size in _TRIAL_SIZES}
        if len(shapes) > 1:
            raise ProjectorError("its images take a number of tokens that depends on their size")
        tokens, before, after = shapes.pop()
        if not FEWEST_TOKENS <= tokens <= MOST_TOKENS:
            message = f"an image takes {tokens} tokens; {FEWEST_TOKENS} to {MOST_TOKENS} are served"
            raise ProjectorError(message)
        return generation_pb2.ImageShape(tokens=tokens, before=before, after=after)

    def _shape_of(self, width: int, height: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """(tokens of an image of this size, token ids before it, token ids after it)."""
        with self._chunks(width, height, bytes(3 * width * height)) as chunks:
            kinds = [self._type(chunk) for chunk in chunks]
            if kinds.count(_IMAGE) != 1:
                raise ProjectorError("it cuts images into several, which is not served")
            at = kinds.index(_IMAGE)
            image = chunks[at]
            if self._mtmd.mtmd_decode_use_non_causal(self._context, image):
                raise ProjectorError(
                    "the cells of an image look at each other (non-causal), which is not served"
                )
            n = int(self._mtmd.mtmd_input_chunk_get_n_tokens(image))
            if int(self._mtmd.mtmd_input_chunk_get_n_pos(image)) != n:
                raise ProjectorError("an image takes another number of positions than of cells")
            before = tuple(token for chunk in chunks[:at] for token in self._ids(chunk))
            after = tuple(token for chunk in chunks[at + 1 :] for token in self._ids(chunk))
        return n, before, after

    @contextmanager
    def _chunks(self, width: int, height: int, rgb: bytes) -> Iterator[list[Any]]:
        """What libmtmd makes of one image."""
        mtmd = self._mtmd
        pixels = (ctypes.c_uint8 * len(rgb)).from_buffer_copy(rgb)
        bitmap = mtmd.mtmd_bitmap_init(width, height, pixels)
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            text = mtmd.mtmd_input_text(
                text=_MARKER, text_len=len(_MARKER), add_special=False, parse_special=True
            )
            bitmaps = (ctypes.c_void_p * 1)(bitmap)
            if mtmd.mtmd_tokenize(self._context, chunks, ctypes.byref(text), bitmaps, 1) != 0:
                raise ProjectorError(first_log_error("libmtmd could not take the image"))
            n = mtmd.mtmd_input_chunks_size(chunks)
            yield [mtmd.mtmd_input_chunks_get(chunks, i) for i in range(n)]
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)

    def _type(self, chunk: Any) -> int:
        return int(self._mtmd.mtmd_input_chunk_get_type(chunk))

    def _ids(self, chunk: Any) -> list[int]:
        if self._type(chunk) != _TEXT:
            raise ProjectorError("it encodes more than images")
        n = ctypes.c_size_t()
        ids = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        return [int(ids[i]) for i in range(n.value)]
