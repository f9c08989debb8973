"""Python's garbage collector, in processes that stream."""

from __future__ import annotations

import gc
from typing import Final

# Of young objects: collected when there are this many more than after the last time. A waiting request has
# hundreds of them, and Python's own 700 has the collector look through them again and again.
_YOUNG: Final = 10_000
# A collection looks through the survivors of this many at once, so that it takes milliseconds.
_MIDDLE: Final = 3
# A full collection comes after this many of those. It stands still for 0.3 s where two thousand requests
# wait, and finds nothing: waiting requests leave no cycles.
_OLD: Final = 100


def set_apart() -> None:
    """Leave all objects that there are now out of later collections: modules, classes, messages.

    A full collection stands still for as long as it takes to look through every object: tens of milliseconds
    for those of the imports alone, and each stream of the process waits. To be called once, when everything
    is imported and nothing is served yet.
    """
    gc.collect()
    gc.freeze()


def collect_rarely() -> None:
    """Run the collector rarely in a process that serves requests.

    What a request leaves behind is freed without the collector, which is there for what should not be.
    """
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
