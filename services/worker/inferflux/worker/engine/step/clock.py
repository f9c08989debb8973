"""The clocks that the engine reads; a test passes its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds: `monotonic_s` for durations and deadlines, `unix_s` for stamps, which may be set."""

    monotonic_s: Callable[[], float] = time.monotonic
    unix_s: Callable[[], float] = time.time
