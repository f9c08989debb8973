"""Parts of an answer, as they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallName:
    """A call begins.

    Attributes:
        id: as the model or its template has it; empty: it has none.
    """

    index: int
    name: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A part of the arguments, which are JSON text."""

    index: int
    text: str


Piece: TypeAlias = Content | Reasoning | CallName | CallArguments


class Tells(Protocol):
    """Takes what is certain of calls."""

    def begin_call(self, name: str, call_id: str) -> None: ...

    def add_arguments(self, text: str) -> None: ...
