"""Chunks of a chat to content, reasoning and calls, and which chats are read at all."""

from __future__ import annotations

from inferflux.gateway.chat_reader import ChatReader, reader_of
from inferflux.gateway.tools import ToolUse
from inferflux.v1 import generation_pb2, inference_pb2, tokenizer_pb2, tokens_pb2

PLAIN = tokenizer_pb2.RenderedChat()
THINKING = tokenizer_pb2.RenderedChat(reasoning=generation_pb2.REASONING_FORMAT_OPTIONAL)
CALLING = tokenizer_pb2.RenderedChat(tool_calls=generation_pb2.TOOL_CALL_FORMAT_HERMES)
ADD = ToolUse(functions=[generation_pb2.FunctionSchema(name="add", parameters="{}")])
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def reader(use: ToolUse, chat: tokenizer_pb2.RenderedChat, *, is_constrained: bool = True) -> ChatReader:
    made = reader_of(use, chat, is_constrained=is_constrained, has_other_constraint=False)
    assert made is not None
    return made


def chunk(text: str) -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(text=text)


def last(text: str) -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(text=text, finished=tokens_pb2.Finished())


def test_a_chat_without_tools_and_reasoning_is_not_read() -> None:
    assert reader_of(ToolUse(), PLAIN, is_constrained=False, has_other_constraint=False) is None


def test_an_answer_of_another_constraint_does_not_reason() -> None:
    assert reader_of(ToolUse(), THINKING, is_constrained=False, has_other_constraint=True) is None


def test_reasoning_and_content_are_told_chunk_by_chunk() -> None:
    reads = reader(ToolUse(), THINKING)
    assert reads.read(chunk("<think>12 + 7")) == inference_pb2.ChatDelta(reasoning_content="12 + 7")
    assert reads.read(chunk("</th")) == inference_pb2.ChatDelta()
    assert reads.read(chunk("ink>\n\n19")) == inference_pb2.ChatDelta(content="19")
    assert reads.read(last("")) == inference_pb2.ChatDelta()


def test_what_is_held_back_comes_with_the_terminal_chunk() -> None:
    reads = reader(ADD, CALLING)
    assert reads.read(chunk("a <tool")) == inference_pb2.ChatDelta(content="a")
    assert reads.read(last("s>")) == inference_pb2.ChatDelta(content=" <tools>")
    assert reader(ADD, CALLING).read(last("a <tool")) == inference_pb2.ChatDelta(content="a <tool")


def test_each_call_has_an_id_and_its_parts_are_told_once() -> None:
    delta = reader(ADD, CALLING).read(last(CALL + "\n" + CALL))
    assert not delta.content
    assert [(part.index, part.name, part.arguments) for part in delta.tool_calls] == [
        (0, "add", '{"a": 1}'),
        (1, "add", '{"a": 1}'),
    ]
    ids = {part.id for part in delta.tool_calls}
    assert len(ids) == 2
    assert all(one.startswith("call_") for one in ids)


def test_without_a_constraint_a_call_of_what_is_no_tool_is_content() -> None:
    text = CALL.replace("add", "sub")
    assert reader(ADD, CALLING, is_constrained=False).read(last(text)).content == text
