"""Token chunks to a message of Anthropic's API, and to the events of its stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from inferflux.common.contract.errors import HttpError
from inferflux.gateway.http.front.sse import PINGED
from inferflux.gateway.request.tools import arguments_of
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

Json: TypeAlias = dict[str, Any]

# Thoughts are told as they are: there is nothing to sign. Some clients drop those without a signature.
SIGNATURE = "unsigned"
_STOPS = {
    generation_pb2.FINISH_REASON_LENGTH: "max_tokens",
    generation_pb2.FINISH_REASON_CONTENT_FILTER: "refusal",
}
# The type of a block's deltas, and their field.
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class MessageAnswer:
    """Chunks to one message.

    Every method that takes something returns the events that tell of it.
    """

    def __init__(self, request_id: str, model: str) -> None:
        self._id = f"msg_{request_id}"
        self._model = model
        self._started = tokens_pb2.Started()
        self._finished = tokens_pb2.Finished()
        self._blocks: list[Json] = []
        # Of the last block, until it ends.
        self._said: list[str] = []
        self._is_open = False
        # White space with which a text may begin: before a call it says nothing.
        self._blank = ""

    def add(
        self, _index: int, chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None = None
    ) -> list[Json]:
        events: list[Json] = []
        if chunk.HasField("started"):
            self._started.CopyFrom(chunk.started)
        if delta is None:
            events += self._write(chunk.text)
        else:
            if delta.reasoning_content:
                events += self._say("thinking", delta.reasoning_content)
            events += self._write(delta.content)
            for call in delta.tool_calls:
                events += self._call(call)
        if chunk.HasField("finished"):
            self._finished.CopyFrom(chunk.finished)
            if not self._blocks:
                events += self._say("text", self._blank)
            events += self._end_block()
        return events

    def begun(self) -> Json:
        """The message before it says anything."""
        return self._message([], usage=self._usage(self._started.prompt_tokens, self._started))

    def ended(self) -> Json:
        """The event that says how it ended."""
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        return {"type": "message_delta", "delta": delta, "usage": self._final_usage()}

    def to_json(self) -> Json:
        whole = self._message(self._blocks, usage=self._final_usage())
        return whole | {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}

    def _message(self, content: list[Json], *, usage: Json) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    @property
    def _stop_reason(self) -> str:
        reason = _STOPS.get(self._finished.reason)
        if reason is not None:
            return reason
        if any(block["type"] == "tool_use" for block in self._blocks):
            return "tool_use"
        return "stop_sequence" if self._finished.stop else "end_turn"

    @property
    def _stop_sequence(self) -> str | None:
        return self._finished.stop if self._stop_reason == "stop_sequence" else None

    def _usage(
        self, prompt_tokens: int, of: tokens_pb2.Started | generation_pb2.Usage, n_answered: int = 0
    ) -> Json:
        """Anthropic's `input_tokens` leave out those that were read from the cache."""
        cached = of.cached_prompt_tokens
        return {
            "input_tokens": prompt_tokens - min(cached, prompt_tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": n_answered,
        }

    def _final_usage(self) -> Json:
        usage = self._finished.usage
        made = self._usage(usage.prompt_tokens, usage, usage.completion_tokens)
        return made | {"output_tokens_details": {"thinking_tokens": usage.reasoning_tokens}}

    def _write(self, text: str) -> list[Json]:
        is_within = self._is_open and self._blocks[-1]["type"] == "text"
        if text and not is_within:
            text, self._blank = self._blank + text, ""
            if text.isspace():
                self._blank, text = text, ""
        return self._say("text", text) if text else []

    def _call(self, call: inference_pb2.ToolCallDelta) -> list[Json]:
        events: list[Json] = []
        if call.id:
            self._blank = ""
            events += self._begin_block({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        if call.arguments:
            events.append(self._delta(call.arguments))
        return events

    def _say(self, kind: str, text: str) -> list[Json]:
        events: list[Json] = []
        if not (self._is_open and self._blocks[-1]["type"] == kind):
            signed = {"signature": ""} if kind == "thinking" else {}
            events += self._begin_block({"type": kind, kind: "", **signed})
        return [*events, self._delta(text)] if text else events

    def _begin_block(self, block: Json) -> list[Json]:
        events = self._end_block()
        self._blocks.append(block)
        self._is_open = True
        return [*events, self._event("content_block_start", content_block=dict(block))]

    def _delta(self, text: str) -> Json:
        self._said.append(text)
        kind, name = _DELTAS[self._blocks[-1]["type"]]
        return self._event("content_block_delta", delta={"type": kind, name: text})

    def _end_block(self) -> list[Json]:
        if not self._is_open:
            return []
        self._is_open = False
        block, said = self._blocks[-1], "".join(self._said)
        self._said.clear()
        events: list[Json] = []
        match block["type"]:
            case "tool_use":
                block["input"] = arguments_of(said)
            case "thinking":
                block |= {"thinking": said, "signature": SIGNATURE}
                signed = {"type": "signature_delta", "signature": SIGNATURE}
                events.append(self._event("content_block_delta", delta=signed))
            case kind:
                block[kind] = said
        return [*events, self._event("content_block_stop")]

    def _event(self, kind: str, **fields: Json) -> Json:
        return {"type": kind, "index": len(self._blocks) - 1, **fields}


class MessageStream:
    """Chunks to the events of a message."""

    framing = PINGED

    def __init__(self, answer: MessageAnswer) -> None:
        self._answer = answer
        self._has_begun = False

    def messages(
        self, index: int, chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None = None
    ) -> list[Json]:
        """The events of a chunk."""
        told = self._answer.add(index, chunk, delta)
        is_end = chunk.HasField("finished")
        events: list[Json] = []
        if not self._has_begun and (chunk.token_ids or is_end):
            self._has_begun = True
            events += [{"type": "message_start", "message": self._answer.begun()}, {"type": "ping"}]
        events += told
        if is_end:
            events += [self._answer.ended(), {"type": "message_stop"}]
        return events

    def last(self) -> list[Json]:
        return []

    def failure(self, error: HttpError) -> list[Mapping[str, Any]]:
        """Write what a message that fails ends with."""
        return [error.body]
