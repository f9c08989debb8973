"""Token chunks of a chat to what a client reads: content, reasoning, calls (pure but for the calls' ids)."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from inferflux.common.answers.parser import AnswerParser, CallArguments, CallName, Content, Piece, Reasoning
from inferflux.common.answers.syntax import SYNTAXES
from inferflux.v1 import inference_pb2, tokenizer_pb2, tokens_pb2

from .tools import ToolUse


def _new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class ChatReader:
    """Reads the chunks of one answer, in order."""

    def __init__(self, parser: AnswerParser, new_call_id: Callable[[], str] = _new_call_id) -> None:
        self._parser = parser
        self._new_call_id = new_call_id

    def read(self, chunk: tokens_pb2.TokenChunk) -> inference_pb2.ChatDelta:
        """What is certain with a chunk; all of it with the terminal one."""
        pieces = self._parser.push(chunk.text)
        if chunk.HasField("finished"):
            pieces += self._parser.finish()
        delta = inference_pb2.ChatDelta()
        for piece in pieces:
            self._add(delta, piece)
        return delta

    def _add(self, delta: inference_pb2.ChatDelta, piece: Piece) -> None:
        match piece:
            case Content():
                delta.content += piece.text
            case Reasoning():
                delta.reasoning_content += piece.text
            case CallName():
                delta.tool_calls.add(index=piece.index, id=self._new_call_id(), name=piece.name)
            case CallArguments():
                calls = delta.tool_calls
                if not calls or calls[-1].index != piece.index:
                    calls.add(index=piece.index)
                calls[-1].arguments += piece.text


def reader_of(
    use: ToolUse, chat: tokenizer_pb2.RenderedChat, *, is_constrained: bool, has_other_constraint: bool
) -> ChatReader | None:
    """Who reads the answer to a rendered prompt; None where all of its text is content.

    Args:
        is_constrained: whether calls are held to their syntax.
        has_other_constraint: whether the answer is something else altogether: then it does not reason.
    """
    if has_other_constraint or not (use.functions or chat.reasoning):
        return None
    syntax = SYNTAXES.get(chat.tool_calls) if use.functions else None
    return ChatReader(
        AnswerParser(syntax=syntax, names=use.names, reasoning=chat.reasoning, is_exact=is_constrained)
    )
