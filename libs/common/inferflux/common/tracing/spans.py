"""Spans as the services make them, and the tracer that makes none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Protocol

from .context import valid

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]


class Kind(Enum):
    """Kind of a span: its relation to the span it comes from."""

    INTERNAL = auto()
    # It answers an RPC.
    SERVER = auto()
    # It takes something from a queue.
    CONSUMER = auto()


class Span(Protocol):
    """One piece of work. What is said of it after `end` is lost; one that is never ended is never seen."""

    @property
    def traceparent(self) -> str:
        """Trace context for what this work causes elsewhere; "" where there is no trace."""
        ...

    def rename(self, name: str) -> None: ...

    def set(self, attributes: Attributes) -> None: ...

    def event(self, name: str, attributes: Attributes | None = None, *, at_s: float | None = None) -> None:
        """Record an event now, or at this Unix time."""
        ...

    def fail(self, error_type: str, message: str = "") -> None:
        """Mark the span as failed: `error_type` is one of few words, `message` for people."""
        ...

    def end(self, at_s: float | None = None) -> None:
        """End the span now, or at this Unix time. Only the first call counts."""
        ...


class Tracer(Protocol):
    """Makes spans. Never blocks, and never raises for what becomes of them."""

    @property
    def is_on(self) -> bool:
        """True if spans go anywhere; ask before work that costs more than a call."""
        ...

    def start(
        self,
        name: str,
        *,
        parent: str = "",
        kind: Kind = Kind.INTERNAL,
        attributes: Attributes | None = None,
        at_s: float | None = None,
    ) -> Span:
        """A span that began now, or at the Unix time `at_s`.

        Args:
            parent: a traceparent. The span starts a trace of its own if this is not one.
        """
        ...

    async def close(self, limit_s: float = 1.5) -> None:
        """Send what has ended, for at most `limit_s` seconds."""
        ...


class _PassingSpan:
    """Span that only passes on what it was given."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent

    def rename(self, name: str) -> None: ...

    def set(self, attributes: Attributes) -> None: ...

    def event(
        self, name: str, attributes: Attributes | None = None, *, at_s: float | None = None
    ) -> None: ...

    def fail(self, error_type: str, message: str = "") -> None: ...

    def end(self, at_s: float | None = None) -> None: ...


class _Off:
    is_on = False

    def start(
        self,
        name: str,  # noqa: ARG002
        *,
        parent: str = "",
        kind: Kind = Kind.INTERNAL,  # noqa: ARG002
        attributes: Attributes | None = None,  # noqa: ARG002
        at_s: float | None = None,  # noqa: ARG002
    ) -> Span:
        return _PassingSpan(valid(parent))

    async def close(self, limit_s: float = 1.5) -> None: ...


OFF: Tracer = _Off()
