"""Bounds on what this process may take, as far as the system knows them."""

from __future__ import annotations

import contextlib
import platform
import resource


def bound(name: str, soft: int, hard: int) -> None:
    """Set a limit by its name, `RLIMIT_CPU` for one.

    macOS has no limit on address space that works: what it does not know or refuses is left alone there.

    Raises:
        ValueError, OSError: Linux refuses the limit.
    """
    number = getattr(resource, name, None)
    if number is None:
        return
    refused = () if platform.system() == "Linux" else (ValueError, OSError)
    with contextlib.suppress(*refused):
        resource.setrlimit(number, (soft, hard))
