"""libmtmd: how a model's prompts hold images, and what encodes them.

An image or a sound becomes pieces: token ids around it, and runs of cells. How many there are depends on the
projector and on the size alone, so libmtmd tells it without pixels, and without the projector's weights.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inferflux.common.contract.requests.sounds import FEWEST_SAMPLES

from .native import capture_log_of, first_log_error, log_errors

Layout = list[list[int] | int]
"""The pieces of an image: token ids, or the number of cells of a run."""

Shape = tuple[int, int] | int
"""Size of an image, as width and height in pixels, or number of samples of a sound."""

TEXT, IMAGE, AUDIO = 0, 1, 2
_MARKER = b"<__inferflux_image__>"
_SAMPLE_BYTES, _PIXEL_BYTES = 4, 3
# An image is long from this ratio of its sides on.
_LONG = 64
_FLASH_ATTENTION = {True: 1, False: 0}


class MtmdError(Exception):
    """libmtmd cannot use the projector, or the image; says why."""


class Mtmd:
    """A loaded projector. `layout` may be called by several threads at once.

    Args:
        path: a GGUF file that llama.cpp calls mmproj, or one that `skeleton_of` made.
        model: llama.cpp's. Its vocabulary is enough to count tokens; None is enough to decode sounds.

    Raises:
        MtmdError: no projector, or one of another model.
    """

    def __init__(
        self,
        path: str | Path,
        model: Any,
        *,
        threads: int = 1,
        flash_attention: bool = False,
        use_gpu: bool = False,
    ) -> None:
        log_errors.clear()
        self.library: Any = importlib.import_module("llama_cpp.mtmd_cpp")
        capture_log_of(self.library.mtmd_log_set)
        params = self.library.mtmd_context_params_default()
        params.use_gpu = use_gpu
        params.print_timings = False
        params.n_threads = threads
        params.media_marker = _MARKER
        params.flash_attn_type = _FLASH_ATTENTION[flash_attention]
        params.warmup = False
        self.context = self.library.mtmd_init_from_file(str(path).encode(), model, params)
        if not self.context:
            raise MtmdError(first_log_error("it is no projector of this model"))
        self.takes_images = bool(self.library.mtmd_support_vision(self.context))
        self.takes_audio = bool(self.library.mtmd_support_audio(self.context))

    def close(self) -> None:
        self.library.mtmd_free(self.context)

    @property
    def sample_rate(self) -> int:
        """Samples a second of the sounds that it takes."""
        return int(self.library.mtmd_get_audio_sample_rate(self.context))

    def samples_of(self, data: bytes) -> bytes:
        """The samples of a sound's file at that rate: one channel, 32-bit floats.

        Raises:
            MtmdError: it cannot be decoded.
        """
        file = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        bitmap = self.library.mtmd_helper_bitmap_init_from_buf(self.context, file, len(data), False)
        if not bitmap:
            raise MtmdError("it is broken, or of a kind that is not known")
        try:
            if not self.library.mtmd_bitmap_is_audio(bitmap):
                raise MtmdError("it is no sound")
            n_bytes = int(self.library.mtmd_bitmap_get_n_bytes(bitmap))
            return ctypes.string_at(self.library.mtmd_bitmap_get_data(bitmap), n_bytes) if n_bytes else b""
        finally:
            self.library.mtmd_bitmap_free(bitmap)

    def layout(self, shape: Shape) -> Layout:
        """The pieces of an image or a sound of this size.

        Raises:
            MtmdError: libmtmd cannot take it.
        """
        with self.chunks([shape], _pixels_for(shape)) as chunks:
            return [self.piece(chunk) for chunk in chunks]

    @contextmanager
    def chunks(self, shapes: Sequence[Shape], data: bytes | None = None) -> Iterator[list[Any]]:
        """Chunks that libmtmd makes of consecutive images or sounds; freed at the end of the block.

        Args:
            data: pixels or samples of the only one; None: chunks that can be counted, and not encoded.

        Raises:
            MtmdError: libmtmd cannot take them.
        """
        for shape in shapes:
            _check(shape, data)
        mtmd = self.library
        held = None if data is None else (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        bitmaps = [self._bitmap(shape, held) for shape in shapes]
        chunks = mtmd.mtmd_input_chunks_init()
        markers = _MARKER * len(bitmaps)
        try:
            text = mtmd.mtmd_input_text(
                text=markers, text_len=len(markers), add_special=False, parse_special=True
            )
            listed = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
            if mtmd.mtmd_tokenize(self.context, chunks, ctypes.byref(text), listed, len(bitmaps)) != 0:
                raise MtmdError(first_log_error("libmtmd could not take it"))
            n = mtmd.mtmd_input_chunks_size(chunks)
            yield [mtmd.mtmd_input_chunks_get(chunks, i) for i in range(n)]
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            for bitmap in bitmaps:
                mtmd.mtmd_bitmap_free(bitmap)

    def _bitmap(self, shape: Shape, held: Any) -> Any:
        if isinstance(shape, int):
            samples = None if held is None else ctypes.cast(held, ctypes.POINTER(ctypes.c_float))
            return self.library.mtmd_bitmap_init_from_audio(shape, samples)
        width, height = shape
        return self.library.mtmd_bitmap_init(width, height, held)

    def piece(self, chunk: Any) -> list[int] | int:
        """The token ids of a chunk, or how many cells it has."""
        if self.type_of(chunk) != TEXT:
            return int(self.library.mtmd_input_chunk_get_n_tokens(chunk))
        n = ctypes.c_size_t()
        ids = self.library.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        return [int(ids[i]) for i in range(n.value)]

    def type_of(self, chunk: Any) -> int:
        return int(self.library.mtmd_input_chunk_get_type(chunk))


def _pixels_for(shape: Shape) -> bytes | None:
    """Black pixels of a long image: made smaller it may lose a side, which pixels alone show."""
    if isinstance(shape, int) or max(shape) <= _LONG * min(shape):
        return None
    return bytes(_PIXEL_BYTES * shape[0] * shape[1])


def _check(shape: Shape, data: bytes | None) -> None:
    """See that libmtmd does not end the process over this size, or read beyond the data.

    Raises:
        MtmdError: it would.
    """
    if isinstance(shape, int):
        if shape < FEWEST_SAMPLES:
            raise MtmdError(f"a sound of {shape} samples is none")
        n_bytes = _SAMPLE_BYTES * shape
    else:
        width, height = shape
        if width < 1 or height < 1:
            raise MtmdError(f"an image of {width} x {height} pixels is none")
        n_bytes = _PIXEL_BYTES * width * height
    if data is not None and len(data) != n_bytes:
        raise MtmdError(f"{len(data)} bytes where there should be {n_bytes}")
