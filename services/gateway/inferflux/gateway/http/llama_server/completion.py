"""POST /completion and /infill of llama.cpp's server: bodies to requests, and token chunks to its objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.openai import constraints
from inferflux.gateway.http.openai.answers import Head, Json, UnnamedEvents, finite, spoken_logprobs
from inferflux.gateway.http.openai.fields import names_used
from inferflux.gateway.http.openai.params import priority_of, to_params
from inferflux.gateway.http.openai.token_texts import bytes_of, name_of
from inferflux.gateway.images.inputs import file_of, is_sound_file
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

from .bodies import CompletionBody, InfillBody, PromptText

# Stands for a file in a text, as in libmtmd.
MEDIA_MARKER = "<__media__>"
_FILES = "prompt.multimodal_data"
# It has no slots that clients could name.
_NO_SLOT = -1
_STOP_TYPES = {
    generation_pb2.FINISH_REASON_STOP: "eos",
    generation_pb2.FINISH_REASON_LENGTH: "limit",
}


def to_completion(body: CompletionBody) -> list[inference_pb2.GenerateRequest]:
    """A request for each prompt.

    Raises:
        InvalidArgument: there is none, or it has other files than markers.
    """
    if not body.prompt:
        raise InvalidArgument("prompt is empty", field="prompt")
    return [_of_prompt(body, prompt) for prompt in prompts_of(body)]


def prompts_of(body: CompletionBody | InfillBody) -> Sequence[object]:
    """Prompts as they were given: a list of token ids is one."""
    prompt = body.prompt
    is_one = not isinstance(prompt, list) or (prompt and isinstance(prompt[0], int))
    return [prompt] if is_one else list(prompt or ())


def _of_prompt(body: CompletionBody, prompt: object) -> inference_pb2.GenerateRequest:
    request = _request(body)
    if isinstance(prompt, PromptText) and prompt.multimodal_data:
        request.parts.parts.extend(_parts(prompt.prompt_string, prompt.multimodal_data))
    elif isinstance(prompt, list):
        request.token_ids.CopyFrom(inference_pb2.TokenIds(ids=prompt))
    else:
        request.text = prompt.prompt_string if isinstance(prompt, PromptText) else str(prompt)
    return request


def _parts(text: str, files: Sequence[str]) -> Iterator[inference_pb2.ContentPart]:
    """Texts and files in turn: each marker of the text stands for a file."""
    texts = text.split(MEDIA_MARKER)
    if len(texts) != len(files) + 1:
        message = f"{_FILES}: {len(files)} files for {len(texts) - 1} markers {MEDIA_MARKER} in prompt_string"
        raise InvalidArgument(message, field=_FILES)
    yield inference_pb2.ContentPart(text=texts[0])
    for i, (file, rest) in enumerate(zip(files, texts[1:], strict=True)):
        data = file_of(file, field=f"{_FILES}[{i}]")
        if is_sound_file(data):
            yield inference_pb2.ContentPart(audio=inference_pb2.AudioInput(data=data))
        else:
            yield inference_pb2.ContentPart(image=inference_pb2.ImageInput(data=data))
        yield inference_pb2.ContentPart(text=rest)


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
    files = [len(one.multimodal_data or ()) for one in prompts_of(body) if isinstance(one, PromptText)]
    for i in range(max(files, default=0)):
        given |= {f"parts.parts[{2 * i + 1}].{kind}": f"{_FILES}[{i}]" for kind in ("image", "audio")}
    return {**names_used(body), **given, "parts": text}


class _Told:
    """The parts that the objects of an answer to a prompt have in common.

    Args:
        index: the prompt's place among those of the body.
    """

    def __init__(self, head: Head, body: CompletionBody | InfillBody, index: int, *, tells_ids: bool) -> None:
        self._head = head
        self._body = body
        self._index = index
        self._tells_ids = tells_ids
        self._n = 0
        self._has_new_line = False

    def of_chunk(self, chunk: tokens_pb2.TokenChunk) -> Json:
        """A part of the answer."""
        self._n += len(chunk.token_ids)
        self._has_new_line |= "\n" in chunk.text
        made: Json = {
            "index": self._index,
            "content": chunk.text,
            "tokens": list(chunk.token_ids) if self._tells_ids else [],
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
        given = prompts_of(body)[self._index]
        asked = body.model_dump(exclude_none=True, exclude={"prompt", "model", "response_fields"})
        return {
            "stop": True,
            "model": self._head.model,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_prompt_tokens,
            "generation_settings": asked,
            "prompt": given.prompt_string if isinstance(given, PromptText) else given,
            "has_new_line": self._has_new_line,
            "truncated": self._is_truncated(finished),
            "stop_type": "word" if finished.stop else _STOP_TYPES.get(finished.reason, "none"),
            "stopping_word": finished.stop,
            "timings": timings(finished),
        }

    def _is_truncated(self, finished: tokens_pb2.Finished) -> bool:
        """Return whether the end of the context came before the limit that was asked for."""
        most = self._body.max_tokens
        is_short = most is None or most < 0 or finished.usage.completion_tokens < most
        return finished.reason == generation_pb2.FINISH_REASON_LENGTH and is_short


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
    return (
        {"cache_n": usage.cached_prompt_tokens}
        | _rates("prompt", usage.prompt_tokens - usage.cached_prompt_tokens, spent.prefill_ms)
        | _rates("predicted", usage.completion_tokens, spent.decode_ms)
    )


def _rates(kind: str, n: int, ms: float) -> Json:
    return {
        f"{kind}_n": n,
        f"{kind}_ms": ms,
        f"{kind}_per_token_ms": ms / n if n else 0.0,
        f"{kind}_per_second": 1000 * n / ms if ms else 0.0,
    }


def chosen(made: Json, names: Sequence[str] | None) -> Json:
    """The named fields of an answer, `a/b` for b of a; all of them without names."""
    if not names:
        return made
    found = {name: reduce(_inside, name.split("/"), made) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _inside(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


class CompletionStream(UnnamedEvents):
    """Chunks to the objects of a stream."""

    def __init__(self, head: Head, body: CompletionBody | InfillBody) -> None:
        self._told = [_Told(head, body, i, tells_ids=True) for i in range(len(prompts_of(body)))]
        self._fields = body.response_fields

    def messages(
        self, index: int, chunk: tokens_pb2.TokenChunk, _delta: inference_pb2.ChatDelta | None = None
    ) -> list[Json]:
        """The object of a chunk; none for a chunk that says nothing to a client."""
        is_end = chunk.HasField("finished")
        if not (chunk.token_ids or chunk.text or is_end):
            return []
        told = self._told[index]
        made = told.of_chunk(chunk)
        return [chosen(made | told.of_end(chunk.finished), self._fields) if is_end else made]

    def last(self) -> list[Json]:
        return []


class CompletionAnswer:
    """Chunks to one object, or to a list of them, one for each of several prompts."""

    def __init__(self, head: Head, body: CompletionBody | InfillBody) -> None:
        n = len(prompts_of(body))
        self._told = [_Told(head, body, i, tells_ids=bool(body.return_tokens)) for i in range(n)]
        self._made: list[Json] = [{} for _ in range(n)]
        self._fields = body.response_fields

    def add(
        self, index: int, chunk: tokens_pb2.TokenChunk, _delta: inference_pb2.ChatDelta | None = None
    ) -> None:
        told, made = self._told[index], self._made[index]
        part = told.of_chunk(chunk)
        for name in ("content", "tokens", "completion_probabilities"):
            if name in part and name in made:
                part[name] = made[name] + part[name]
        made |= part
        if chunk.HasField("finished"):
            made |= told.of_end(chunk.finished)

    def to_json(self) -> Any:
        made = [chosen(one, self._fields) for one in self._made]
        return made[0] if len(made) == 1 else made
