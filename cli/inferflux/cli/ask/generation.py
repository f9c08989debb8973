"""Generation options of a command, from its flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferflux.api.speculation import source_of
from inferflux.v1 import generation_pb2, inference_pb2


@dataclass(frozen=True, slots=True)
class Generation:
    """Flags of `chat` and `complete`; None leaves a value to the server; the resume window, to the client."""

    max_tokens: int | None = None
    max_reasoning_tokens: int | None = None
    deterministic: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    priority: int = 0
    ignores_eos: bool = False
    resume_window_s: int | None = None
    skips_answer_cache: bool = False
    constraint: generation_pb2.StructuredConstraint | None = None
    speculation: str | None = None
    tools: Sequence[inference_pb2.Tool] = ()
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    # What other flags say wins.
    sampling: generation_pb2.SamplingParams | None = None

    @property
    def asks_for_drafts(self) -> bool:
        return self.speculation not in (None, "off")

    def params(self) -> generation_pb2.GenerationParams:
        sampling = generation_pb2.SamplingParams()
        if self.sampling is not None:
            sampling.CopyFrom(self.sampling)
        own = generation_pb2.SamplingParams(temperature=self.temperature, top_p=self.top_p, seed=self.seed)
        sampling.MergeFrom(own)
        return generation_pb2.GenerationParams(
            sampling=sampling,
            max_tokens=self.max_tokens,
            max_reasoning_tokens=self.max_reasoning_tokens,
            deterministic=self.deterministic,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignores_eos,
            constraint=self.constraint,
            speculation=source_of(self.speculation),
        )


def user_message(text: str) -> inference_pb2.ChatMessage:
    return inference_pb2.ChatMessage(role="user", content=text)


def system_message(text: str) -> inference_pb2.ChatMessage:
    return inference_pb2.ChatMessage(role="system", content=text)


def assistant_message(text: str, calls: Sequence[inference_pb2.ToolCall] = ()) -> inference_pb2.ChatMessage:
    return inference_pb2.ChatMessage(role="assistant", content=text, tool_calls=calls)


def tool_message(call: inference_pb2.ToolCall, result: str) -> inference_pb2.ChatMessage:
    return inference_pb2.ChatMessage(role="tool", content=result, name=call.name, tool_call_id=call.id)
