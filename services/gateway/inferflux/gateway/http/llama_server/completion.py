"""POST /completion and /infill of llama.cpp's server: bodies to requests, and token chunks to its objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferflux.common.errors import InvalidArgument
from inferflux.gateway.http.errors import unsupported
from inferflux.gateway.http.openai import constraints
from inferflux.gateway.http.openai.answers import Head, Json, UnnamedEvents, finite, spoken_logprobs
from inferflux.gateway.http.openai.fields import names_used
from inferflux.gateway.http.openai.params import priority_of, to_params
from inferflux.gateway.http.openai.token_texts import bytes_of, name_of
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

from .bodies import CompletionBody, InfillBody

# It has no slots that clients could name.
_NO_SLOT = -1
_STOP_TYPES = {
    generation_pb2.FINISH_REASON_STOP: "eos",
    generation_pb2.FINISH_REASON_LENGTH: "limit",
}


def to_completion(body: CompletionBody) -> inference_pb2.GenerateRequest:
    """Raises:
    InvalidArgument: there is not one prompt, of a text or of token ids.
    """
    request = _request(body)
    if isinstance(body.prompt, str):
        request.text = body.prompt
        return request
    ids = [one for one in body.prompt if isinstance(one, int)]
    if len(ids) < len(body.prompt) or not ids:
        raise unsupported("prompt", "one text, or token ids: /v1/completions takes several prompts")
    request.token_ids.CopyFrom(inference_pb2.TokenIds(ids=ids))
    return request


def to_infill(body: InfillBody) -> inference_pb2.GenerateRequest:
    """Files of the same project, and what was begun in the gap, precede it.

    Raises:
        InvalidArgument: nothing surrounds the gap.
    """
    files = [f"{extra.filename or ''}\n{extra.text}\n".lstrip("\n") for extra in body.input_extra or []]
    before = "".join(files) + body.input_prefix + (body.prompt or "")
    if not before and not body.input_suffix:
        raise InvalidArgument("input_prefix and input_suffix are empty", field="input_prefix")
    request = _request(body)
    # A prompt is never empty: what follows the gap may be all there is.
    request.text = before or "\n"
    request.suffix = body.input_suffix
    return request


def _request(body: CompletionBody | InfillBody) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        model=body.model,
        params=to_params(body, max_tokens=body.max_tokens, logprobs=body.logprobs),
        priority=priority_of(body),
        skip_answer_cache=bool(body.skip_answer_cache),
        adapter=body.adapter or "",
    )


def field_names(body: CompletionBody | InfillBody) -> Mapping[str, str]:
    """Map fields that have another name inside to the client's names."""
    text, suffix = ("input_prefix", "input_suffix") if isinstance(body, InfillBody) else ("prompt", "suffix")
    given = {"text": text, "token_ids": text, "suffix": suffix, **constraints.field_names(body)}
    return {**names_used(body), **given}


class _Told:
    """The parts that the objects of an answer have in common."""

    def __init__(self, head: Head, body: CompletionBody | InfillBody) -> None:
        self._head = head
        self._body = body
        self._n = 0

    def of_chunk(self, chunk: tokens_pb2.TokenChunk) -> Json:
        """A part of the answer."""
        self._n += len(chunk.token_ids)
        made: Json = {
            "index": 0,
            "content": chunk.text,
            "tokens": list(chunk.token_ids) if self._body.return_tokens else [],
            "id_slot": _NO_SLOT,
            "stop": False,
            "tokens_predicted": self._n,
            "tokens_evaluated": self._head.prompt_tokens,
        }
        if self._body.logprobs is not None:
            made["completion_probabilities"] = probabilities(spoken_logprobs(chunk))
        return made

    def of_end(self, finished: tokens_pb2.Finished) -> Json:
        """Make what the last object has beside its part of the answer."""
        usage, body = finished.usage, self._body
        asked = body.model_dump(exclude_none=True, exclude={"prompt", "model"})
        return {
            "stop": True,
            "model": self._head.model,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_prompt_tokens,
            "generation_settings": asked,
            "prompt": body.prompt,
            "truncated": False,
            "stop_type": "word" if finished.stop else _STOP_TYPES.get(finished.reason, "none"),
            "stopping_word": finished.stop,
            "timings": timings(finished),
        }


def probabilities(logprobs: Sequence[tokens_pb2.TokenLogprobs]) -> list[Json]:
    """Tokens with the logarithms of their probabilities, before any sampling parameter."""
    return [_token(one.chosen) | {"top_logprobs": [_token(other) for other in one.top]} for one in logprobs]


def _token(token: tokens_pb2.TokenLogprob) -> Json:
    return {
        "id": token.token_id,
        "token": name_of(token),
        "bytes": list(bytes_of(token)),
        "logprob": finite(token.logprob),
    }


def timings(finished: tokens_pb2.Finished) -> Json:
    """Where the time of a request went, in milliseconds."""
    usage, spent = finished.usage, finished.timings
    return _rates("prompt", usage.prompt_tokens - usage.cached_prompt_tokens, spent.prefill_ms) | _rates(
        "predicted", usage.completion_tokens, spent.decode_ms
    )


def _rates(kind: str, n: int, ms: float) -> Json:
    return {
        f"{kind}_n": n,
        f"{kind}_ms": ms,
        f"{kind}_per_token_ms": ms / n if n else 0.0,
        f"{kind}_per_second": 1000 * n / ms if ms else 0.0,
    }


class CompletionStream(UnnamedEvents):
    """Chunks to the objects of a stream."""

    def __init__(self, head: Head, body: CompletionBody | InfillBody) -> None:
        self._told = _Told(head, body)

    def messages(
        self, _index: int, chunk: tokens_pb2.TokenChunk, _delta: inference_pb2.ChatDelta | None = None
    ) -> list[Json]:
        """The object of a chunk; none for a chunk that says nothing to a client."""
        is_end = chunk.HasField("finished")
        if not (chunk.token_ids or chunk.text or is_end):
            return []
        made = self._told.of_chunk(chunk)
        return [made | self._told.of_end(chunk.finished) if is_end else made]

    def last(self) -> list[Json]:
        return []


class CompletionAnswer:
    """Chunks to one object."""

    def __init__(self, head: Head, body: CompletionBody | InfillBody) -> None:
        self._told = _Told(head, body)
        self._made: Json = {}

    def add(
        self, _index: int, chunk: tokens_pb2.TokenChunk, _delta: inference_pb2.ChatDelta | None = None
    ) -> None:
        part = self._told.of_chunk(chunk)
        for name in ("content", "tokens", "completion_probabilities"):
            if name in part and name in self._made:
                part[name] = self._made[name] + part[name]
        self._made |= part
        if chunk.HasField("finished"):
            self._made |= self._told.of_end(chunk.finished)

    def to_json(self) -> Json:
        return self._made
