"""Commands that do not wait for a long step (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from inferflux.v1 import engine_pb2

Arrived = Callable[[], Iterable[engine_pb2.EngineCommand]]


def none_arrived() -> Iterable[engine_pb2.EngineCommand]:
    """Return no commands, for an engine that gets its commands between steps alone."""
    return ()


def is_more_urgent(command: engine_pb2.EngineCommand, urgency_key: float) -> bool:
    """True if `command` is to be obeyed before a step ends that computes prompts up to this `urgency_key`.

    A request that is no more urgent would wait for these prompts in any case.
    """
    match command.WhichOneof("command"):
        case "start":
            return command.start.urgency_key < urgency_key
        case "resume":
            return command.resume.urgency_key < urgency_key
        case kind:
            return kind in _NOT_WAITING


# What may end a request of the step, or the engine.
_NOT_WAITING = ("cancel", "deschedule", "flush")
