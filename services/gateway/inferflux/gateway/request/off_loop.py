"""Work that would hold up the event loop, and every stream with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

_R = TypeVar("_R")

# Parsing a larger JSON text takes milliseconds, in several steps.
LARGE_BYTES = 256 << 10
# Of schemas, which are read word by word.
LARGE_SCHEMA = 4 << 10


async def off_loop_if_large(n_bytes: int, work: Callable[[], _R], *, above: int = LARGE_BYTES) -> _R:
    """Do pure work on a text. A thread does it for a large one: the loop serves other calls between steps.

    Args:
        above: how many bytes are not large yet.
    """
    return await asyncio.to_thread(work) if n_bytes > above else work()
