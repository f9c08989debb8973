"""Chunks of a chat to content, reasoning and calls; which chats are read; what a resumed one lacks."""

from __future__ import annotations

from harness.answer_syntaxes import HERMES, with_thoughts
from harness.profiles import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.gateway.request.chat_reader import ChatReader, Rest, format_of, has_format
from inferflux.gateway.request.tools import ToolUse
from inferflux.v1 import generation_pb2, inference_pb2, tokenizer_pb2, tokens_pb2

Chunk = tokens_pb2.TokenChunk
Delta = inference_pb2.ChatDelta
STOP = generation_pb2.FINISH_REASON_STOP
PLAIN = tokenizer_pb2.RenderedChat()
OPTIONAL = generation_pb2.REASONING_FORMAT_OPTIONAL
THINKING = tokenizer_pb2.RenderedChat(reasoning=generation_pb2.REASONING_FORMAT_OPTIONAL)
CALLING = tokenizer_pb2.RenderedChat(syntax=HERMES)
BOTH = tokenizer_pb2.RenderedChat(syntax=with_thoughts(HERMES, OPTIONAL), reasoning=OPTIONAL)
ADD = ToolUse(functions=[generation_pb2.FunctionSchema(name="add", parameters="{}")])
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def answer_format(
    use: ToolUse, chat: tokenizer_pb2.RenderedChat, *, is_constrained: bool = True, has_other: bool = False
) -> generation_pb2.AnswerFormat | None:
    return format_of(
        use, chat, is_constrained=is_constrained, is_all_content=has_other, call_id_prefix="call_7"
    )


def reader(use: ToolUse, chat: tokenizer_pb2.RenderedChat, *, is_constrained: bool = True) -> ChatReader:
    form = answer_format(use, chat, is_constrained=is_constrained)
    assert form is not None
    return ChatReader(form)


def chunk(text: str) -> tokens_pb2.TokenChunk:
    return Chunk(text=text)


def last(text: str) -> tokens_pb2.TokenChunk:
    return Chunk(text=text, finished=tokens_pb2.Finished())


def test_a_chat_without_tools_and_reasoning_is_not_read() -> None:
    assert answer_format(ToolUse(), PLAIN) is None


def test_an_answer_of_another_constraint_does_not_reason() -> None:
    assert answer_format(ToolUse(), THINKING, has_other=True) is None


def test_reasoning_and_content_are_told_chunk_by_chunk() -> None:
    reads = reader(ToolUse(), THINKING)
    assert reads.read(chunk("<think>12 + 7")) == Delta(reasoning_content="12 + 7")
    assert reads.read(chunk("</th")) == Delta()
    assert reads.read(chunk("ink>\n\n19")) == Delta(content="19")
    assert reads.read(last("")) == Delta()


def test_what_is_held_back_comes_with_the_terminal_chunk() -> None:
    reads = reader(ADD, CALLING)
    assert reads.read(chunk("a <tool")) == Delta(content="a")
    assert reads.read(last("s>")) == Delta(content=" <tools>")
    assert reader(ADD, CALLING).read(last("a <tool")) == Delta(content="a <tool")


def test_each_call_has_an_id_and_its_parts_are_told_once() -> None:
    delta = reader(ADD, CALLING).read(last(CALL + "\n" + CALL))
    assert not delta.content
    assert [(part.index, part.id, part.name, part.arguments) for part in delta.tool_calls] == [
        (0, "call_70000", "add", '{"a": 1}'),
        (1, "call_70001", "add", '{"a": 1}'),
    ]


def test_without_a_constraint_a_call_of_what_is_no_tool_is_content() -> None:
    text = CALL.replace("add", "sub")
    assert reader(ADD, CALLING, is_constrained=False).read(last(text)).content == text


# An answer, a token each.
TOKENS = (
    *("<th", "ink>", "\n", "I have", " to ", "add.", "\n</", "think", ">\n", "\nLet", " me", " see.\n"),
    *("<tool", "_call>\n{", '"name": "', 'add", "argu', 'ments": {"a', '": 1', "}", "}\n</tool_c", "all>"),
    *("\n<tool_call>\n", '{"name": "add", "arguments": {}', "}\n", "</tool_call>"),
)


def chunks_of(sizes: list[int], form: generation_pb2.AnswerFormat) -> list[tokens_pb2.TokenChunk]:
    """What a worker publishes of the answer, in chunks of these sizes, and then of one token each."""
    chunks, at = [Chunk(epoch=1, started=tokens_pb2.Started(), answer_format=form)], 0
    for size in [*sizes, *[1] * len(TOKENS)]:
        if at < len(TOKENS):
            texts = TOKENS[at : at + size]
            ids = range(at, at + len(texts))
            chunks.append(Chunk(epoch=1, offset=at, token_ids=ids, text="".join(texts)))
            at += len(texts)
    end = tokens_pb2.Finished(reason=STOP)
    return [*chunks, Chunk(epoch=1, offset=at, finished=end, answer_format=form)]


def copied(chunks: list[tokens_pb2.TokenChunk]) -> list[tokens_pb2.TokenChunk]:
    return [Chunk.FromString(one.SerializeToString()) for one in chunks]


def joined(deltas: list[inference_pb2.ChatDelta]) -> inference_pb2.ChatDelta:
    """What a client puts together."""
    whole = Delta()
    for delta in deltas:
        whole.content += delta.content
        whole.reasoning_content += delta.reasoning_content
        for part in delta.tool_calls:
            if part.id:
                whole.tool_calls.add(index=part.index, id=part.id, name=part.name)
            else:
                assert part.index == len(whole.tool_calls) - 1
            whole.tool_calls[part.index].arguments += part.arguments
    return whole


@given(st.lists(st.integers(1, 6), max_size=12), st.booleans(), st.data())
@settings(max_examples=examples(200))
def test_a_client_gets_the_same_wherever_its_stream_is_lost(
    sizes: list[int], is_constrained: bool, data: st.DataObject
) -> None:
    form = answer_format(ADD, BOTH, is_constrained=is_constrained)
    assert form is not None
    chunks = chunks_of(sizes, form)
    first = ChatReader(form)
    had = [first.read(one) for one in chunks]
    n = data.draw(st.integers(0, len(chunks) - 1))
    offset = chunks[n].offset
    rest = Rest(offset)
    lacked: list[inference_pb2.ChatDelta] = []
    ids: list[int] = []
    for one in copied(chunks):
        if rest.take(one):
            assert rest.reader is not None
            lacked.append(rest.reader.read(one))
            ids += one.token_ids
    assert ids == list(range(offset, len(TOKENS)))
    # Also its ids of calls, and what had been told of a call when the stream was lost.
    assert joined(had[:n] + lacked) == joined(had)


def test_a_plain_stream_that_is_resumed_has_no_deltas() -> None:
    rest = Rest(1)
    assert not rest.take(Chunk(epoch=1, offset=0, token_ids=[1], text="a"))
    assert rest.take(Chunk(epoch=1, offset=1, token_ids=[2], text="b"))
    assert rest.reader is None


def test_the_first_and_the_last_chunk_of_an_answer_have_its_format() -> None:
    form = answer_format(ToolUse(), THINKING)
    queued = Chunk(epoch=1, queued=tokens_pb2.Queued()).SerializeToString()
    later = Chunk(epoch=1, offset=3, token_ids=[1]).SerializeToString()
    begun = Chunk(epoch=1, started=tokens_pb2.Started(), answer_format=form).SerializeToString()
    plain = Chunk(epoch=1, started=tokens_pb2.Started()).SerializeToString()
    token = Chunk(epoch=1, token_ids=[1]).SerializeToString()
    assert has_format([queued, begun, later]) is True
    assert has_format([queued, b"\xff no chunk", plain, later]) is False
    assert has_format([token, later]) is False
    assert has_format([queued, later]) is None
    plain_end = Chunk(epoch=1, offset=4, finished=tokens_pb2.Finished(reason=STOP)).SerializeToString()
    end = Chunk(epoch=1, offset=4, failed=tokens_pb2.Failed(), answer_format=form).SerializeToString()
    failed = Chunk(epoch=1, offset=4, failed=tokens_pb2.Failed()).SerializeToString()
    assert has_format([later, plain_end]) is False
    assert has_format([later, end]) is True
    assert has_format([later, failed]) is None  # the scheduler's, of a request that it could not handle
    assert has_format([]) is None
