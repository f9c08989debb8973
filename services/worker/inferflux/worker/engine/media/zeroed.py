"""Memory that is zero when it is allocated."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# glibc fills what it gives out with the complement of this byte, what is freed with it: see mallopt(3).
_M_PERTURB: Final = -6
_GIVES_ZEROS: Final = 0xFF

_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)


@contextmanager
def zeroed_memory() -> Iterator[None]:
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
