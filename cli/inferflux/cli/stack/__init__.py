"""Every InferFlux process on one machine, supervised: for `inferctl up`, for tests, for benchmarks."""

from __future__ import annotations

from .events import EventKind, StackEvent
from .options import CHAT_TEMPLATE, DISK_PATH, MMPROJ, MODELS_STORE, THREADS, StackOptions
from .start_errors import StartError
from .supervisor import Stack

__all__ = [
    "CHAT_TEMPLATE",
    "DISK_PATH",
    "MMPROJ",
    "MODELS_STORE",
    "THREADS",
    "EventKind",
    "Stack",
    "StackEvent",
    "StackOptions",
    "StartError",
]
