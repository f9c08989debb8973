"""Where llama.cpp has its KV cells, as it logs it: no function of its API says."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from inferflux.common.llama import native

# An environment variable: with it, a context that is made logs lines for every batch.
_SWITCH = "LLAMA_KV_CACHE_DEBUG"
# Of llama_kv_cache::find_slot in llama.cpp's src/llama-kv-cache.cpp.
_LINE = re.compile(rb"find_slot: stream\[0\], n = *(\d+), used = *(\d+), ")


@contextmanager
def logged_cells() -> Iterator[list[tuple[int, int]]]:
    """A list to which contexts that are made meanwhile add (cells up to the highest filled one, filled ones),
    before each batch is placed, as long as this lasts."""
    lines: list[tuple[int, int]] = []

    @native.llama.llama_log_callback  # type: ignore[untyped-decorator]
    def on_log(_level: int, text: bytes, _user_data: object) -> None:
        if match := _LINE.match(text):
            lines.append((int(match[1]), int(match[2])))

    native.llama.llama_log_set(on_log, ctypes.c_void_p(0))
    os.environ[_SWITCH] = "1"
    try:
        yield lines
    finally:
        del os.environ[_SWITCH]
        native._capture_log(native.llama)
