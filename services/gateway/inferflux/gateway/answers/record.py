"""An answer as it is kept, and as much of it as a request wants (pure).

It is kept in the chunks that the worker published, because what was held back after each of them depends on
bytes that only the worker has. So an answer is cut where a chunk ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from google.protobuf.message import DecodeError

from inferflux.v1 import answers_pb2, generation_pb2, tokens_pb2

STOP: Final = generation_pb2.FINISH_REASON_STOP
LENGTH: Final = generation_pb2.FINISH_REASON_LENGTH

# An answer larger than this is not kept.
MAX_ANSWER_BYTES = 1 << 20

_SEAL_BYTES = 16


class Recorder:
    """Takes in the chunks of one answer, each token once and in order.

    An answer that was retried is not kept: it may go on with other tokens than an undisturbed one.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self._n_tokens = 0
        self._is_whole = True
        self._reason: generation_pb2.FinishReason.ValueType | None = None
        self._reasoning_tokens = 0
        self._stop = ""

    def take(self, chunk: tokens_pb2.TokenChunk) -> None:
        """Add a chunk, as it was published."""
        if chunk.HasField("failed") or chunk.epoch > 1 or chunk.offset != self._n_tokens:
            self._is_whole = False
        if not self._is_whole:
            self._data.clear()
            return
        self._n_tokens += len(chunk.token_ids)
        if chunk.token_ids or chunk.text:
            kept = tokens_pb2.TokenChunk(
                offset=chunk.offset,
                token_ids=chunk.token_ids,
                text=chunk.text,
                logprobs=chunk.logprobs,
                held_text=chunk.held_text,
            )
            # Serialized lists that follow each other are one list.
            self._data += answers_pb2.CachedAnswer(chunks=[kept]).SerializeToString()
        if chunk.HasField("finished"):
            self._reason = chunk.finished.reason
            self._stop = chunk.finished.stop
            self._reasoning_tokens = chunk.finished.usage.reasoning_tokens
            self._is_whole = chunk.finished.usage.completion_tokens == self._n_tokens
        if len(self._data) > MAX_ANSWER_BYTES:
            self._is_whole = False

    def answer(self) -> bytes | None:
        """The serialized CachedAnswer; None unless the answer is whole and ended as it should."""
        if not self._is_whole or not self._n_tokens or self._reason not in (STOP, LENGTH):
            return None
        rest = answers_pb2.CachedAnswer(
            reason=self._reason, reasoning_tokens=self._reasoning_tokens, stop=self._stop
        )
        return bytes(self._data) + rest.SerializeToString()


def cut(answer: answers_pb2.CachedAnswer, max_tokens: int) -> answers_pb2.CachedAnswer | None:
    """Cut the answer to that of a request for at most `max_tokens`.

    None if that is not known: the answer was ended by a smaller `max_tokens`, or within a chunk.
    """
    n_tokens = sum(len(chunk.token_ids) for chunk in answer.chunks)
    if n_tokens <= max_tokens:
        return answer if answer.reason == STOP or n_tokens == max_tokens else None
    ends = [chunk.offset + len(chunk.token_ids) for chunk in answer.chunks]
    if max_tokens not in ends:
        return None
    shorter = answers_pb2.CachedAnswer(
        chunks=answer.chunks[: ends.index(max_tokens) + 1],
        reason=LENGTH,
        reasoning_tokens=answer.reasoning_tokens,
    )
    shorter.chunks[-1].text += shorter.chunks[-1].held_text
    return shorter


def stream_of(
    answer: answers_pb2.CachedAnswer,
    *,
    request_id: str,
    attempt_id: str,
    model: str,
    prompt_tokens: int,
    answer_format: generation_pb2.AnswerFormat | None = None,
) -> list[tokens_pb2.TokenChunk]:
    """The chunks that a worker would have published: the first has started, the last has finished.

    They are as small as they were: who resumes a stream within a chunk misses the rest of its text.
    """
    first, last = _chunk(request_id), _chunk(request_id)
    first.started.prompt_tokens = prompt_tokens
    if answer_format is not None:
        first.answer_format.CopyFrom(answer_format)
        last.answer_format.CopyFrom(answer_format)
    chunks = [first]
    for kept in answer.chunks:
        if not kept.token_ids:  # all it has is the end of the text
            last.text += kept.text
            continue
        chunk = _chunk(request_id, offset=kept.offset, token_ids=kept.token_ids, text=kept.text)
        chunk.logprobs.extend(kept.logprobs)
        chunks.append(chunk)
    last.offset = chunks[-1].offset + len(chunks[-1].token_ids)
    last.attempt_id = attempt_id
    last.model = model
    last.finished.reason, last.finished.stop = answer.reason, answer.stop
    usage = last.finished.usage
    usage.prompt_tokens = prompt_tokens
    usage.completion_tokens = usage.cached_completion_tokens = last.offset
    usage.reasoning_tokens = min(answer.reasoning_tokens, last.offset)
    return [*chunks, last]


def _chunk(
    request_id: str, *, offset: int = 0, token_ids: Sequence[int] = (), text: str = ""
) -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(
        request_id=request_id, epoch=1, offset=offset, token_ids=token_ids, text=text
    )


def seal(data: bytes, name: bytes, salt: bytes) -> bytes:
    """Seal an answer for `name`: whatever was not sealed for it is told apart."""
    return _mark(data, name, salt) + data


def unseal(sealed: bytes, name: bytes, salt: bytes) -> answers_pb2.CachedAnswer | None:
    """The answer; None if it is corrupt, or was kept under another name or salt."""
    data = sealed[_SEAL_BYTES:]
    if sealed[:_SEAL_BYTES] != _mark(data, name, salt):
        return None
    try:
        answer = answers_pb2.CachedAnswer.FromString(data)
    except DecodeError:
        return None
    return answer if answer.chunks else None


def _mark(data: bytes, name: bytes, salt: bytes) -> bytes:
    return blake2b(name + data, key=salt, digest_size=_SEAL_BYTES).digest()
