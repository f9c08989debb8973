"""Token chunks to Ollama's answers, whole and as lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from inferflux.api.finish_reasons import name_of
from inferflux.common.contract.errors import HttpError
from inferflux.gateway.http.front.sse import LINES
from inferflux.gateway.http.openai.answers import spoken_json
from inferflux.gateway.request.tools import arguments_of
from inferflux.v1 import inference_pb2, tokens_pb2

Json: TypeAlias = dict[str, Any]
# A text, a thought and calls to what an answer has of them.
Says = Callable[[str, str, Sequence[Json]], Json]

_NS_PER_MS = 1_000_000


def chat_says(content: str, thinking: str, calls: Sequence[Json]) -> Json:
    """Write a part of an answer of /api/chat."""
    message: Json = {"role": "assistant", "content": content}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = [*calls]
    return {"message": message}


def generate_says(content: str, thinking: str, _calls: Sequence[Json]) -> Json:
    """Write a part of an answer of /api/generate."""
    return {"response": content} | ({"thinking": thinking} if thinking else {})


class Head:
    """The beginning of every object of an answer.

    Args:
        clock: seconds since the Unix epoch.
    """

    def __init__(self, model: str, clock: Callable[[], float]) -> None:
        self._model = model
        self._clock = clock

    def of(self, said: Json, **fields: Any) -> Json:
        return {"model": self._model, "created_at": rfc3339(self._clock()), **said, **fields}

    def empty(self, says: Says, done_reason: str) -> Json:
        """The answer to a request without a prompt: the model is there."""
        return self.of(says("", "", ()), done=True, done_reason=done_reason)


class _Calls:
    """Parts of calls to whole ones: a call is told when it has ended."""

    def __init__(self) -> None:
        self._open: inference_pb2.ToolCallDelta | None = None
        self._arguments: list[str] = []

    def take(self, parts: Sequence[inference_pb2.ToolCallDelta]) -> list[Json]:
        """Calls that have ended."""
        ended: list[Json] = []
        for part in parts:
            if part.id:
                ended += self.end()
                self._open = part
            self._arguments.append(part.arguments)
        return ended

    def end(self) -> list[Json]:
        call, self._open = self._open, None
        text = "".join(self._arguments)
        self._arguments.clear()
        if call is None:
            return []
        function = {"index": call.index, "name": call.name, "arguments": arguments_of(text)}
        return [{"id": call.id, "function": function}]


class LineStream:
    """Chunks to lines; the last one has the reason and the counts."""

    framing = LINES

    def __init__(self, head: Head, says: Says, *, has_logprobs: bool) -> None:
        self._head = head
        self._says = says
        self._has_logprobs = has_logprobs
        self._calls = _Calls()

    def messages(
        self, _index: int, chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None = None
    ) -> list[Json]:
        """The lines of a chunk."""
        content, thinking, calls = _said(chunk, delta, self._calls)
        logprobs = spoken_json(chunk) if self._has_logprobs else []
        lines: list[Json] = []
        if content or thinking or calls or logprobs:
            more = {"logprobs": logprobs} if logprobs else {}
            lines.append(self._head.of(self._says(content, thinking, calls), done=False, **more))
        if chunk.HasField("finished"):
            lines.append(self._head.of(self._says("", "", ()), **_ended(chunk.finished)))
        return lines

    def last(self) -> list[Json]:
        return []

    def failure(self, error: HttpError) -> list[Mapping[str, Any]]:
        return [error.body]


class WholeAnswer:
    """Chunks to one object."""

    def __init__(self, head: Head, says: Says, *, has_logprobs: bool) -> None:
        self._head = head
        self._says = says
        self._has_logprobs = has_logprobs
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._made: list[Json] = []
        self._logprobs: list[Json] = []
        self._calls = _Calls()
        self._end: Json = {}

    def add(
        self, _index: int, chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None = None
    ) -> None:
        content, thinking, calls = _said(chunk, delta, self._calls)
        self._texts.append(content)
        self._thoughts.append(thinking)
        self._made += calls
        if self._has_logprobs:
            self._logprobs += spoken_json(chunk)
        if chunk.HasField("finished"):
            self._end = _ended(chunk.finished)

    def to_json(self) -> Json:
        said = self._says("".join(self._texts), "".join(self._thoughts), self._made)
        more = {"logprobs": self._logprobs} if self._has_logprobs else {}
        return self._head.of(said, **self._end, **more)


def rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _said(
    chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None, calls: _Calls
) -> tuple[str, str, list[Json]]:
    if delta is None:
        return chunk.text, "", []
    ended = calls.take(delta.tool_calls)
    if chunk.HasField("finished"):
        ended += calls.end()
    return delta.content, delta.reasoning_content, ended


def _ended(finished: tokens_pb2.Finished) -> Json:
    """Durations are in nanoseconds. A request waits for its model where that is loaded for it."""
    timings, usage = finished.timings, finished.usage
    return {
        "done": True,
        "done_reason": name_of(finished.reason),
        "total_duration": _ns(timings.queue_ms + timings.prefill_ms + timings.decode_ms),
        "load_duration": _ns(timings.queue_ms),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": _ns(timings.prefill_ms),
        "eval_count": usage.completion_tokens,
        "eval_duration": _ns(timings.decode_ms),
    }


def _ns(ms: float) -> int:
    return round(ms * _NS_PER_MS)
