"""One streamed answer: what it says, and how fast it came."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferflux.api.finish_reasons import name_of
from inferflux.common.prefixes.names import tier_name
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

from .tools import to_json


@dataclass(slots=True)
class Answer:
    """Collects the chunks of one request. Times are seconds of any one monotonic clock.

    Attributes:
        sent_at: when the request was sent.
        resumes: how often its stream was lost and went on.
        asks_for_drafts: whether the request says where drafts come from.
        max_tokens: limit of the request's tokens; 0: it has none. None: not known.
    """

    sent_at: float
    request_id: str = ""
    parts: list[str] = field(default_factory=list)
    tokens: int = 0
    resumes: int = 0
    finished: tokens_pb2.Finished | None = None
    calls: list[inference_pb2.ToolCall] = field(default_factory=list)
    asks_for_drafts: bool = False
    max_tokens: int | None = None
    # What the text of the next chunk is, where that is told: of chats with tools, and of models that reason.
    _delta: inference_pb2.ChatDelta | None = None
    _first_at: float | None = None
    _first_tokens: int = 0
    _last_at: float = 0.0

    def take(self, chunk: tokens_pb2.TokenChunk, now: float) -> str:
        """Add a chunk; returns its text."""
        self.request_id = chunk.request_id or self.request_id
        if chunk.token_ids:
            self.tokens += len(chunk.token_ids)
            self._last_at = now
            if self._first_at is None:
                self._first_at = now
                self._first_tokens = len(chunk.token_ids)
        if chunk.HasField("finished"):
            self.finished = chunk.finished
        delta, self._delta = self._delta, None
        text = chunk.text if delta is None else delta.content
        self.parts.append(text)
        return text

    def on_delta(self, delta: inference_pb2.ChatDelta) -> None:
        """Record a delta, from which the next chunk's text is shown."""
        self._delta = delta
        for part in delta.tool_calls:
            if part.id or not self.calls:  # the answer may be resumed within a call
                self.calls.append(inference_pb2.ToolCall(id=part.id, name=part.name))
            self.calls[-1].arguments += part.arguments

    def on_resumed(self) -> None:
        self.resumes += 1

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def ttft_s(self) -> float | None:
        """Sent until the first token was here."""
        return None if self._first_at is None else self._first_at - self.sent_at

    @property
    def tokens_per_s(self) -> float | None:
        """The rate after the first message with tokens; None when that was all."""
        if self._first_at is None or self._last_at <= self._first_at:
            return None
        return (self.tokens - self._first_tokens) / (self._last_at - self._first_at)

    @property
    def drafted(self) -> int:
        """Tokens that were drafted for it."""
        return 0 if self.finished is None else self.finished.timings.draft_n

    @property
    def accepted(self) -> int:
        """Number of drafted tokens that the model accepted."""
        return 0 if self.finished is None else self.finished.timings.draft_n_accepted

    @property
    def finish_reason(self) -> str:
        """stop, tool_calls, length, cancelled, content_filter or schema_mismatch; empty for a stream that
        just ended."""
        if self.finished is None:
            return ""
        if self.calls and self.finished.reason == generation_pb2.FINISH_REASON_STOP:
            return "tool_calls"
        return name_of(self.finished.reason)

    @property
    def is_cancelled(self) -> bool:
        return self.finish_reason == name_of(generation_pb2.FINISH_REASON_CANCELLED)

    @property
    def mismatch(self) -> str:
        """Describe the part of a complete answer that does not match its schema."""
        return "" if self.finished is None else self.finished.mismatch

    @property
    def cut(self) -> str:
        """Why the answer is not whole; empty where it is."""
        reason = self.finished.reason if self.finished is not None else None
        if reason == generation_pb2.FINISH_REASON_LENGTH:
            return f"the answer is cut after {self.tokens:,} tokens: it reached {self._reached}"
        if reason == generation_pb2.FINISH_REASON_CONTENT_FILTER:
            return "guardrails ended the answer"
        if reason == generation_pb2.FINISH_REASON_SCHEMA_MISMATCH:
            return f"the answer does not match its schema: {self.mismatch}"
        return ""

    @property
    def _reached(self) -> str:
        limit, end = "--max-tokens (0: no limit)", "the end of the model's context"
        if self.max_tokens is None:
            return f"{limit}, or {end}"
        return limit if 0 < self.max_tokens <= self.tokens else end

    def as_dict(self) -> dict[str, object]:
        """Answer for `--json`: absent figures are null."""
        usage = self.finished.usage if self.finished else generation_pb2.Usage()
        ttft_s, rate = self.ttft_s, self.tokens_per_s
        calls = {"tool_calls": to_json(self.calls)} if self.calls else {}
        drafts = {"draft_n": self.drafted, "draft_n_accepted": self.accepted} if self.drafted else {}
        mismatch = {"mismatch": self.mismatch} if self.mismatch else {}
        return (
            calls
            | drafts
            | mismatch
            | {
                "request_id": self.request_id,
                "text": self.text,
                "finish_reason": self.finish_reason,
                "prompt_tokens": usage.prompt_tokens,
                "cached_prompt_tokens": usage.cached_prompt_tokens,
                "cached_prompt_tier": tier_name(usage.cached_prompt_tier),
                "completion_tokens": usage.completion_tokens,
                "cached_completion_tokens": usage.cached_completion_tokens,
                "ttft_ms": None if ttft_s is None else round(ttft_s * 1000, 1),
                "tokens_per_s": None if rate is None else round(rate, 1),
            }
        )

    def summary(self) -> str:
        """One line: `61 tokens · first after 35 ms · 210 tokens/s · stop · 6f1c...`."""
        parts = [f"{self.tokens} token{'' if self.tokens == 1 else 's'}"]
        if self.ttft_s is not None:
            parts.append(f"first after {self.ttft_s * 1000:.0f} ms")
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.0f} tokens/s")
        usage = self.finished.usage if self.finished is not None else generation_pb2.Usage()
        if usage.cached_completion_tokens:
            parts.append("from the answer cache")
        elif usage.cached_prompt_tokens:
            tier = tier_name(usage.cached_prompt_tier)
            where = f" ({tier})" if tier in ("host", "disk") else ""
            cached, of = usage.cached_prompt_tokens, usage.prompt_tokens
            parts.append(f"{cached:,} of {of:,} prompt tokens cached{where}")
        if self.drafted:
            parts.append(f"{self.accepted:,} of {self.drafted:,} drafted tokens accepted")
        elif self.asks_for_drafts:
            parts.append("nothing drafted")
        if self.resumes:
            parts.append("resumed" if self.resumes == 1 else f"resumed {self.resumes} times")
        parts += [part for part in (self.finish_reason, self.request_id) if part]
        return " · ".join(parts)
