"""Conversations as the models read them: what the chat template renders, cut into what is learned and not.

``tests/unit/tools`` holds that the pieces joined are what the template of the GGUF files gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tools.llama_gguf import IM_END, IM_START

from .sample import Message
from .toolbox import Toolbox


class Piece(NamedTuple):
    """A message: what comes before its content, the content with its end, and what comes after."""

    head: str
    body: str
    tail: str
    learn: bool


def _turn(role: str, body: str) -> Piece:
    return Piece(f"{IM_START}{role}\n", f"{body}{IM_END}", "\n", learn=role == "assistant")


def _system(text: str | None, tools: Toolbox) -> Piece:
    section = "\n".join(("# Tools\n\n<tools>", *tools.lines, "</tools>"))
    return _turn("system", section if text is None else f"{text}\n\n{section}")


def pieces(messages: tuple[Message, ...], tools: Toolbox) -> Iterator[Piece]:
    """The conversation, message by message; results of tools that follow each other make one."""
    system = messages[0].content if messages[0].role == "system" else None
    rest = messages if system is None else messages[1:]
    if tools.lines:
        yield _system(system, tools)
    elif system is not None:
        yield _turn("system", system)
    results: list[str] = []
    for i, message in enumerate(rest):
        if message.role != "tool":
            yield _turn(message.role, message.text)
            continue
        results.append(f"<tool_response>\n{message.content}\n</tool_response>")
        if i + 1 == len(rest) or rest[i + 1].role != "tool":
            yield _turn("user", "\n".join(results))
            results = []


def prompt(messages: tuple[Message, ...], tools: Toolbox) -> str:
    """The text up to where the assistant's answer begins."""
    said = "".join(piece.head + piece.body + piece.tail for piece in pieces(messages, tools))
    return f"{said}{IM_START}assistant\n"
