"""Tells a worker which image or sound its engine computes, should the engine die of it.

The engine writes it to a file in memory that the worker made, and that outlives the process. Two threads
compute images: one encodes them beside the steps, the main one has the model compute the encoded cells.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LENGTH: Final = 96
_ENCODING, _DECODING = 0, _LENGTH
# Of a step that computes no cells of an image now. No image has this name.
_STEP: Final = "-"


class ImageNote:
    """Names the images that are computed now.

    Args:
        fd: of the file; None for an engine whose end is not looked into.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        self._encoder: int | None = None
        # What the main thread computes besides cells of images.
        self._between = ""

    @contextmanager
    def encoding(self, name: str) -> Iterator[None]:
        """Within, the calling thread encodes the image `name`."""
        self._encoder = threading.get_ident()
        self._write(name, _ENCODING)
        try:
            yield
        finally:
            self._write("", _ENCODING)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Within, the main thread computes a step, which may be to blame as well as an image."""
        self._between = _STEP
        self._write(_STEP, _DECODING)
        try:
            yield
        finally:
            self._between = ""
            self._write("", _DECODING)

    @contextmanager
    def decoding(self, name: str) -> Iterator[None]:
        """Within, the main thread has the model compute cells of the image `name`."""
        self._write(name, _DECODING)
        try:
            yield
        finally:
            self._write(self._between, _DECODING)

    def on_abort(self) -> None:
        """The calling thread aborts: what the other one computes is not to blame. llama.cpp's own threads,
        which either may have started, leave both."""
        thread = threading.get_ident()
        if thread == threading.main_thread().ident:
            self._write("", _ENCODING)
        elif thread == self._encoder:
            self._write("", _DECODING)

    def _write(self, name: str, at: int) -> None:
        if self._fd is not None:
            os.pwrite(self._fd, name.encode()[:_LENGTH].ljust(_LENGTH, b"\0"), at)


def noted_in(data: bytes) -> str:
    """The one image of a dead engine's note; "" where there is none, or another one or a step may be to
    blame."""
    names = {data[at : at + _LENGTH].rstrip(b"\0").decode() for at in (_ENCODING, _DECODING)}
    names.discard("")
    return names.pop() if len(names) == 1 and _STEP not in names else ""
