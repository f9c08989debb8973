"""Token chunks of a chat to what a client reads: content, reasoning, calls (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from inferflux.api.stream_state import StreamState, Verdict
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.chunks import parse_chunk
from inferflux.common.text.answers.families import syntax_in
from inferflux.common.text.answers.parser import AnswerParser
from inferflux.common.text.answers.pieces import CallArguments, CallName, Content, Piece, Reasoning
from inferflux.v1 import generation_pb2, inference_pb2, tokenizer_pb2, tokens_pb2

from .tools import ToolUse

# Styles of arguments that do not tell strings from other values.
_UNTYPED_STYLES = frozenset({generation_pb2.ARGUMENT_STYLE_TEXT, generation_pb2.ARGUMENT_STYLE_NESTED})


class ChatReader:
    """Reads the chunks of one answer, in order."""

    def __init__(self, form: generation_pb2.AnswerFormat) -> None:
        types: dict[str, dict[str, str]] = {name: {} for name in form.functions}
        types |= {one.function: dict(one.types) for one in form.types if one.function in types}
        self._parser = AnswerParser(
            syntax=syntax_in(form.syntax, form.reasoning),
            names=types,
            reasoning=form.reasoning,
            is_exact=form.is_exact,
            prefix=form.prefix,
        )
        self._call_id_prefix = form.call_id_prefix

    def read(self, chunk: tokens_pb2.TokenChunk) -> inference_pb2.ChatDelta:
        """Content, reasoning and calls that are certain by now; with the terminal chunk, all that is left."""
        pieces = self._parser.push(chunk.text)
        if chunk.HasField("finished"):
            is_cut = chunk.finished.reason == generation_pb2.FINISH_REASON_LENGTH
            pieces += self._parser.finish(is_cut=is_cut)
        delta = inference_pb2.ChatDelta()
        for piece in pieces:
            self._add(delta, piece)
        return delta

    def skip(self, text: str) -> None:
        """Parse text that the client has."""
        self._parser.push(text)

    def _add(self, delta: inference_pb2.ChatDelta, piece: Piece) -> None:
        match piece:
            case Content():
                delta.content += piece.text
            case Reasoning():
                delta.reasoning_content += piece.text
            case CallName():
                call_id = piece.id or f"{self._call_id_prefix}{piece.index:04x}"
                delta.tool_calls.add(index=piece.index, id=call_id, name=piece.name)
            case CallArguments():
                calls = delta.tool_calls
                if not calls or calls[-1].index != piece.index:
                    calls.add(index=piece.index)
                calls[-1].arguments += piece.text


class Rest:
    """The answer after its first `offset` tokens, which the client has.

    An answer that has a format needs all its chunks, from the first one on. The reader skips what the client
    has, so it reads the rest as if the client's stream had not been lost.
    """

    def __init__(self, offset: int) -> None:
        self._state = StreamState(offset)
        # Set by the first chunk that has a format.
        self.reader: ChatReader | None = None

    def take(self, chunk: tokens_pb2.TokenChunk) -> bool:
        """Cut a chunk to what the client lacks. Returns False if that is nothing."""
        if self.reader is None and chunk.HasField("answer_format"):
            self.reader = ChatReader(chunk.answer_format)
        text = chunk.text
        is_lacking = self._state.offer(chunk) is Verdict.ACCEPT
        if self.reader is not None:
            self.reader.skip(text.removesuffix(chunk.text) if is_lacking else text)
        return is_lacking


def has_format(messages: Iterable[bytes]) -> bool | None:
    """True if an answer has a format; None if neither its first nor its last chunk is there."""
    for data in messages:
        try:
            chunk = parse_chunk(data)
        except InvalidArgument:
            continue
        if chunk.HasField("answer_format"):
            return True
        is_first = chunk.HasField("started") or (chunk.token_ids and not chunk.offset)
        if is_first or chunk.HasField("finished"):
            return False
    return None


def format_of(
    use: ToolUse,
    chat: tokenizer_pb2.RenderedChat,
    *,
    is_constrained: bool,
    is_all_content: bool,
    call_id_prefix: str,
) -> generation_pb2.AnswerFormat | None:
    """How the answer to a rendered prompt is read; None where all of its text is content.

    Args:
        is_constrained: whether calls are held to their syntax.
        is_all_content: whether a constraint holds all of the answer: then it does not reason.
    """
    if is_all_content:
        return None
    form = generation_pb2.AnswerFormat(reasoning=chat.reasoning, prefix=chat.prefix)
    if chat.HasField("syntax"):
        form.syntax.CopyFrom(chat.syntax)
    if not use.functions:
        if form.HasField("syntax"):
            form.syntax.ClearField("calls")
        return form if form.reasoning or form.syntax.ByteSize() else None
    form.functions.extend(sorted(use.names))
    if chat.syntax.calls.style in _UNTYPED_STYLES:
        form.types.extend(use.types())
    form.is_exact = is_constrained
    form.call_id_prefix = call_id_prefix
    return form
