"""Completions: a body to GenerateRequests, and token chunks to OpenAI's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferflux.api.finish_reasons import name_of as reason_of
from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.errors.errors import unsupported
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

from . import constraints, served
from .answers import (
    DraftSum,
    Head,
    Json,
    StreamUsage,
    UnnamedEvents,
    UsageSum,
    drafts_of,
    finite,
    spoken_logprobs,
)
from .bodies import CompletionBody, StreamOptions
from .choice_count import check_choices
from .fields import names_used
from .params import priority_of, to_params
from .token_texts import TextOffsets, bytes_of, name_of

# OpenAI's, where the body says nothing.
DEFAULT_MAX_TOKENS = 16
# Each prompt's request has a copy: the largest constraint, stop strings and biases fit well.
MAX_SHARED_BYTES = 64 << 10


def field_names(body: CompletionBody) -> Mapping[str, str]:
    """Map fields that have another name inside to the client's names."""
    names = {"text": "prompt", "token_ids": "prompt", **constraints.field_names(body)}
    names["prompt_logprobs"] = "logprobs"
    return {**names_used(body), **names}


def to_requests(body: CompletionBody) -> list[inference_pb2.GenerateRequest]:
    """A request for each prompt.

    Raises:
        InvalidArgument: a value that is not served, or no prompt.
    """
    _check_supported(body)
    prompts = _prompts(body.prompt)
    if not prompts:
        raise InvalidArgument("prompt is empty", field="prompt")
    # Before any request is made of them: a body may name a hundred thousand.
    check_choices(prompts=len(prompts), n=body.n or 1)
    most = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    # A generation has a token at least: where none is wanted, it is left out.
    params = to_params(body, max_tokens=most or 1, logprobs=body.logprobs)
    if body.echo and body.logprobs is not None:
        params.prompt_logprobs = body.logprobs
    common = inference_pb2.GenerateRequest(
        model=body.model,
        params=params,
        priority=priority_of(body),
        skip_answer_cache=bool(body.skip_answer_cache),
        adapter=body.adapter or "",
        suffix=body.suffix or None,
    )
    if len(prompts) > 1 and common.ByteSize() > MAX_SHARED_BYTES:
        message = f"what several prompts share has at most {MAX_SHARED_BYTES} bytes"
        raise InvalidArgument(message, field="prompt")
    return [_with_prompt(common, prompt) for prompt in prompts]


def _check_supported(body: CompletionBody) -> None:
    served.check_stream(body)
    if body.suffix and body.echo:
        raise unsupported("suffix", "not together with echo")
    if body.suffix and _has_token_ids(body.prompt):
        raise unsupported("suffix", "not together with a prompt of token ids")
    if body.best_of not in (None, body.n or 1):
        raise unsupported("best_of", "only the value of n is supported")


def _has_token_ids(prompt: str | list[str] | list[int] | list[list[int]]) -> bool:
    return not isinstance(prompt, str) and any(not isinstance(one, str) for one in prompt)


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    texts_or_ids: list[str | list[int]] = [one for one in prompt if not isinstance(one, int)]
    return texts_or_ids or ([[one for one in prompt if isinstance(one, int)]] if prompt else [])


def _with_prompt(
    common: inference_pb2.GenerateRequest, prompt: str | list[int]
) -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest()
    request.CopyFrom(common)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.CopyFrom(inference_pb2.TokenIds(ids=prompt))
    return request


class Shape:
    """Parts that streams and whole answers of completions have in common.

    Args:
        echoes: the text that precedes the choices of each prompt.
        n: choices of each prompt.
        has_scores: whether tokens of the prompt have log-probabilities, too.
        is_prompt_alone: whether nothing is told but the prompt.
    """

    def __init__(
        self,
        head: Head,
        *,
        echoes: Sequence[str],
        n: int,
        has_logprobs: bool,
        has_scores: bool = False,
        is_prompt_alone: bool = False,
    ) -> None:
        self.head = head
        self.usage = UsageSum(choices_per_prompt=n)
        self.n_choices = len(echoes) * n
        self._echoes = echoes
        self._n = n
        self._has_logprobs = has_logprobs
        self._is_prompt_alone = is_prompt_alone
        self._offsets = [TextOffsets(self.echo(index)) for index in range(self.n_choices)]
        if not has_scores:
            for index, offsets in enumerate(self._offsets):
                offsets.skip(self.echo(index))

    def echo(self, index: int) -> str:
        return self._echoes[index // self._n]

    def seen(self, chunk: tokens_pb2.TokenChunk) -> tokens_pb2.TokenChunk:
        """Return what the client gets of a chunk."""
        if not self._is_prompt_alone:
            return chunk
        told = tokens_pb2.TokenChunk()
        told.CopyFrom(chunk)
        for field in ("token_ids", "text", "logprobs"):
            told.ClearField(field)
        if told.HasField("finished"):
            told.finished.reason = generation_pb2.FINISH_REASON_LENGTH
            told.finished.usage.completion_tokens = 0
        return told

    def logprobs(self, index: int, chunk: tokens_pb2.TokenChunk) -> Json | None:
        """The log-probabilities of a chunk, as this API has them; None where none are wanted."""
        if not self._has_logprobs:
            return None
        made: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        offsets = self._offsets[index]
        for i, one in enumerate(chunk.prompt_logprobs):
            self._put(made, one, offsets.next_of_echo(bytes_of(one.chosen)), is_first=i == 0)
        for one in spoken_logprobs(chunk):
            self._put(made, one, offsets.next(bytes_of(one.chosen)))
        return made

    @staticmethod
    def _put(made: Json, one: tokens_pb2.TokenLogprobs, offset: int, *, is_first: bool = False) -> None:
        """A token, of which the first of a prompt has no probability: nothing precedes it."""
        top = {name_of(other): finite(other.logprob) for other in one.top}
        made["tokens"].append(name_of(one.chosen))
        made["token_logprobs"].append(None if is_first else finite(one.chosen.logprob))
        made["top_logprobs"].append(None if is_first else top)
        made["text_offset"].append(offset)

    def choice(self, index: int, text: str, logprobs: Json | None, finish_reason: str | None) -> Json:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


class CompletionStream(UnnamedEvents):
    """Chunks of all choices to the messages of a stream."""

    def __init__(self, shape: Shape, options: StreamOptions | None = None) -> None:
        self._shape = shape
        self._told = StreamUsage(shape.head, options)
        self._begun: set[int] = set()

    def messages(
        self, index: int, chunk: tokens_pb2.TokenChunk, _delta: inference_pb2.ChatDelta | None = None
    ) -> list[Json]:
        """Return the client's messages for one chunk of a choice."""
        is_begin = bool(chunk.token_ids)
        chunk = self._shape.seen(chunk)
        is_end = chunk.HasField("finished")
        self._told.note(chunk)
        text = chunk.text
        if index not in self._begun and (is_begin or is_end):
            self._begun.add(index)
            text = self._shape.echo(index) + text
        logprobs = self._shape.logprobs(index, chunk)
        if is_end:
            self._shape.usage.add(index, chunk.finished.usage)
        if not (text or is_end or (logprobs and logprobs["tokens"])):
            return []
        reason = reason_of(chunk.finished.reason) if is_end else None
        message = self._shape.head.of("text_completion", [self._shape.choice(index, text, logprobs, reason)])
        if is_end:
            message |= drafts_of(chunk.finished)
        return [message | self._told.of_message()]

    def last(self) -> list[Json]:
        """Return the messages after the choices."""
        if not self._told.is_last:
            return []
        return [self._shape.head.of("text_completion", []) | {"usage": self._shape.usage.to_json()}]


class CompletionAnswer:
    """Chunks of all choices to one answer."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._choices = [
            shape.choice(i, shape.echo(i), shape.logprobs(i, tokens_pb2.TokenChunk()), None)
            for i in range(shape.n_choices)
        ]
        self._drafts = DraftSum()

    def add(
        self, index: int, chunk: tokens_pb2.TokenChunk, _delta: inference_pb2.ChatDelta | None = None
    ) -> None:
        choice = self._choices[index]
        chunk = self._shape.seen(chunk)
        choice["text"] += chunk.text
        for name, values in (self._shape.logprobs(index, chunk) or {}).items():
            choice["logprobs"][name].extend(values)
        if chunk.HasField("finished"):
            choice["finish_reason"] = reason_of(chunk.finished.reason)
            self._shape.usage.add(index, chunk.finished.usage)
            self._drafts.add(chunk.finished.timings)

    def to_json(self) -> Json:
        said = {"usage": self._shape.usage.to_json()} | self._drafts.to_json()
        return self._shape.head.of("text_completion", self._choices) | said
