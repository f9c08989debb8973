"""A process that ends when its parent does (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def exit_with_parent(number: signal.Signals = signal.SIGTERM, *, parent: int | None = None) -> None:
    """Have the kernel send this process `number` when its parent dies; exit if it already has.

    Args:
        parent: the parent's process id, if it has been told: it may have died before this is called.
    """
    parent = parent or os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)
