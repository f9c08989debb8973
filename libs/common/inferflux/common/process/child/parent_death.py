"""A process that ends when its parent does."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from typing import Any

_PR_SET_PDEATHSIG = 1
# Where the kernel does not tell: how often the parent is looked for.
_POLL_S = 0.2


def exit_with_parent(number: signal.Signals = signal.SIGTERM, *, parent: int | None = None) -> None:
    """Have this process get `number` when its parent dies; exit if it already has.

    Linux sends it at once. Elsewhere a thread looks for the parent several times a second.

    Args:
        parent: the parent's process id, if it has been told: it may have died before this is called.
    """
    parent = parent or os.getppid()
    prctl = _find_prctl()
    if prctl is None:
        threading.Thread(target=_watch, args=(parent, number), daemon=True).start()
    elif prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def _find_prctl() -> Any:
    """The C library's `prctl`, which Linux alone has."""
    return getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)


def _watch(parent: int, number: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), number)
