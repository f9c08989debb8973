"""Python's garbage collector, in processes that stream."""

from __future__ import annotations

import gc


def set_apart() -> None:
    """Leave all objects that there are now out of later collections: modules, classes, messages.

    A full collection stands still for as long as it takes to look through every object: tens of milliseconds
    for those of the imports alone, and each stream of the process waits. To be called once, when everything
    is imported and nothing is served yet.
    """
    gc.collect()
    gc.freeze()
