"""Events of a stack, for the program that shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class EventKind(Enum):
    """In the order of a process's life; PLANNED comes once per process before anything starts."""

    PLANNED = "planned"
    STARTING = "starting"
    WAITING = "waiting"
    READY = "ready"
    DIED = "died"
    ENGINE_DIED = "engine died"
    RESTARTED = "restarted"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class StackEvent:
    """Event of a process, or of the model (process `model`)."""

    kind: EventKind
    process: str
    detail: str = ""


Observer = Callable[[StackEvent], None]


def ignore(event: StackEvent) -> None:
    """An observer that looks away."""
