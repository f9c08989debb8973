"""Work of low priority: it gives way to the steps of other engines on the same cores."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

# Beside a busy thread it gets about a tenth of a core, and all of a core that is idle.
_NICE = 10

_Made = TypeVar("_Made")


def in_background(work: Callable[[], _Made]) -> _Made:
    """Do the work in a thread of low priority, and wait for it; raises what it raises.

    A thread, since a process without privileges cannot raise its own priority again. Threads that the work
    starts have its low priority: llama.cpp's team for one, which belongs to that thread and ends with it.
    """
    with ThreadPoolExecutor(1, "background", initializer=_lower) as pool:
        return pool.submit(work).result()


def _lower() -> None:
    if sys.platform == "linux":  # elsewhere threads have no priority of their own
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), _NICE))
