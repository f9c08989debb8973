"""Parts that answers of chats and completions have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from inferflux.common.contract.errors import HttpError
from inferflux.gateway.http.front.sse import UNNAMED
from inferflux.v1 import generation_pb2, tokens_pb2

from .bodies import StreamOptions
from .token_texts import bytes_of, name_of

Json = dict[str, Any]

# JSON has no minus infinity; OpenAI's API says this of a token that is out of the question.
_LEAST_LOGPROB = -9999.0


@dataclass(slots=True)
class Head:
    """The fields that every object of an answer begins with.

    Attributes:
        created: seconds since the Unix epoch.
        fingerprint: of what computes it; None until it is known.
        prompt_tokens: 0 until it is known.
    """

    id: str
    model: str
    created: int
    service_tier: str = "default"
    fingerprint: str | None = None
    prompt_tokens: int = 0

    def know(self, digest: str, prompt_tokens: int) -> None:
        """Take in what is known once the first choice is submitted.

        Args:
            digest: of the model's file, and of its adapter.
        """
        self.fingerprint = f"fp_{blake2b(digest.encode(), digest_size=5).hexdigest()}"
        self.prompt_tokens = prompt_tokens

    def of(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "service_tier": self.service_tier,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


class UnnamedEvents:
    """How streams of chats and completions are framed."""

    framing = UNNAMED

    def failure(self, error: HttpError) -> list[Mapping[str, Any]]:
        return [error.body]


class StreamUsage:
    """Choose the messages of a stream that tell the usage.

    Args:
        options: of the stream.
    """

    def __init__(self, head: Head, options: StreamOptions | None = None) -> None:
        self._head = head
        self.is_last = bool(options and options.include_usage)
        self._is_continuous = self.is_last and bool(options and options.continuous_usage_stats)
        self._completion = 0

    def note(self, chunk: tokens_pb2.TokenChunk) -> None:
        self._completion += len(chunk.token_ids)

    def of_message(self) -> Json:
        """Return the usage that a message before the last one has."""
        if not self._is_continuous:
            return {"usage": None} if self.is_last else {}
        prompt, completion = self._head.prompt_tokens, self._completion
        total = prompt + completion
        return {"usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}}


class UsageSum:
    """The usage of an answer with several choices: each prompt counts once, by its first choice."""

    def __init__(self, choices_per_prompt: int = 1) -> None:
        self._per_prompt = choices_per_prompt
        self._prompt = self._cached = self._completion = self._reasoning = 0

    def add(self, index: int, usage: generation_pb2.Usage) -> None:
        self._completion += usage.completion_tokens
        self._reasoning += usage.reasoning_tokens
        if index % self._per_prompt == 0:
            self._prompt += usage.prompt_tokens
            self._cached += usage.cached_prompt_tokens

    def to_json(self) -> Json:
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._completion,
            "total_tokens": self._prompt + self._completion,
            "prompt_tokens_details": {"cached_tokens": self._cached},
            "completion_tokens_details": {"reasoning_tokens": self._reasoning},
        }


class DraftSum:
    """Tokens drafted for the choices of an answer, under llama.cpp's names."""

    def __init__(self) -> None:
        self._drafted = self._accepted = 0

    def add(self, timings: generation_pb2.Timings) -> None:
        self._drafted += timings.draft_n
        self._accepted += timings.draft_n_accepted

    def to_json(self) -> Json:
        """Return its fields of an answer: none where nothing was drafted."""
        if not self._drafted:
            return {}
        return {"timings": {"draft_n": self._drafted, "draft_n_accepted": self._accepted}}


def drafts_of(finished: tokens_pb2.Finished) -> Json:
    """Return the drafts of a choice, for the chunk that ends it."""
    drafts = DraftSum()
    drafts.add(finished.timings)
    return drafts.to_json()


def spoken_logprobs(chunk: tokens_pb2.TokenChunk) -> list[tokens_pb2.TokenLogprobs]:
    """A chunk's log-probabilities, without that of the token that ended the text: it has no text itself."""
    given = list(chunk.logprobs)
    is_stop = chunk.HasField("finished") and chunk.finished.reason == generation_pb2.FINISH_REASON_STOP
    if is_stop and given and not given[-1].chosen.text:
        given.pop()
    return given


def finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)


def spoken_json(chunk: tokens_pb2.TokenChunk) -> list[Json]:
    """A chunk's log-probabilities, each with its alternatives, as chats and responses have them."""
    return [
        _token_json(one.chosen) | {"top_logprobs": [_token_json(other) for other in one.top]}
        for one in spoken_logprobs(chunk)
    ]


def _token_json(token: tokens_pb2.TokenLogprob) -> Json:
    # An older worker does not say which bytes a replacement character stands for.
    is_known = token.piece or "\ufffd" not in token.text
    return {
        "token": name_of(token),
        "logprob": finite(token.logprob),
        "bytes": list(bytes_of(token)) if is_known else None,
    }
