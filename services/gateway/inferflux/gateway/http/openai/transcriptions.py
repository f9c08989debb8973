"""Audio transcriptions of OpenAI's API: a form to a ChatRequest, for a model that takes sounds."""

from __future__ import annotations

from collections.abc import Mapping

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.errors.errors import missing, unsupported
from inferflux.v1 import inference_pb2, tokens_pb2

from .answers import Json
from .bodies import ModelName, SamplingBody
from .multipart import FormPart
from .params import priority_of, to_params

FORMATS = ("json", "text")
_INSTRUCTION = "Transcribe this audio. Answer with its words alone."
_LISTS = "timestamp_granularities", "include"
# Fields that are numbers in a form, too.
_NUMBERS = "temperature", "seed", "max_tokens", "top_k", "top_p", "priority"


class TranscriptionBody(SamplingBody):
    """The fields of a form, beside its file."""

    model: ModelName = ""
    language: str | None = None
    prompt: str | None = None
    response_format: str | None = None  # type: ignore[assignment]
    max_tokens: int | None = None


def fields_of(parts: list[FormPart]) -> tuple[bytes, dict[str, object]]:
    """(the file, the other fields) of a form.

    Raises:
        InvalidArgument: there is no file, a field is no text, or one is not served.
    """
    files = [part.data for part in parts if part.name == "file"]
    if len(files) != 1:
        raise missing("file") if not files else InvalidArgument("file: one is taken", field="file")
    fields: dict[str, object] = {}
    for part in parts:
        name = part.name.removesuffix("[]")
        if name == "file":
            continue
        try:
            text = part.data.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(f"{name[:64]} is no UTF-8", field=name[:64]) from None
        if name in _LISTS or (name == "chunking_strategy" and text != "auto"):
            raise unsupported(name)
        fields[name] = _number(name, text) if name in _NUMBERS else text
    if fields.pop("stream", "false") != "false":
        raise unsupported("stream", "a transcription comes as a whole")
    return files[0], fields


def _number(name: str, text: str) -> float | int:
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise InvalidArgument(f"{name} is no number", field=name, reason="INVALID_TYPE") from None


def to_request(body: TranscriptionBody, data: bytes) -> inference_pb2.ChatRequest:
    """Raises:
    InvalidArgument: the format of the answer is not served.
    """
    if body.response_format not in (None, *FORMATS):
        raise unsupported("response_format", f"only {' and '.join(FORMATS)} are supported")
    asked = _INSTRUCTION
    if body.language:
        asked += f" Its language is {body.language[:64]!r}."
    if body.prompt:
        asked += f" What was said before: {body.prompt}"
    parts = [
        inference_pb2.ContentPart(audio=inference_pb2.AudioInput(data=data)),
        inference_pb2.ContentPart(text=asked),
    ]
    params = to_params(
        body.model_copy(update={"response_format": None}), max_tokens=body.max_tokens, logprobs=None
    )
    if not params.sampling.HasField("temperature"):
        params.sampling.temperature = 0.0
    return inference_pb2.ChatRequest(
        model=body.model,
        messages=[inference_pb2.ChatMessage(role="user", parts=parts)],
        params=params,
        priority=priority_of(body),
    )


# What the client calls fields that have another name inside.
FIELD_NAMES: Mapping[str, str] = {"messages[0].parts[0].audio": "file", "messages": "prompt"}


class Transcription:
    """Chunks to one text."""

    def __init__(self) -> None:
        self.text = ""
        self._usage: Json = {}

    def add(
        self, _index: int, chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None = None
    ) -> None:
        self.text += chunk.text if delta is None else delta.content
        if chunk.HasField("finished"):
            usage = chunk.finished.usage
            self._usage = {
                "type": "tokens",
                "input_tokens": usage.prompt_tokens,
                "output_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            }

    def to_json(self) -> Json:
        return {"text": self.text.strip(), "usage": self._usage}
