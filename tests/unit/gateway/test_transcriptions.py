"""Forms, and transcriptions that they ask for."""

from __future__ import annotations

import pytest
from pydantic_core import to_json

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.openai.multipart import parse_form
from inferflux.gateway.http.openai.transcriptions import (
    Transcription,
    TranscriptionBody,
    fields_of,
    to_request,
)
from inferflux.gateway.http.paths.reading import parse
from inferflux.v1 import inference_pb2, tokens_pb2

KIND = "multipart/form-data; boundary=x-1"


def form(**fields: str | bytes) -> bytes:
    made = b""
    for name, value in fields.items():
        filename = '; filename="a.wav"' if name == "file" else ""
        data = value if isinstance(value, bytes) else value.encode()
        made += f'--x-1\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n\r\n'.encode() + data
        made += b"\r\n"
    return made + b"--x-1--\r\n"


def request(**fields: str | bytes) -> inference_pb2.ChatRequest:
    data, given = fields_of(parse_form(form(**fields), KIND))
    return to_request(parse(TranscriptionBody, to_json(given)), data)


def test_a_form_has_its_parts_byte_by_byte() -> None:
    data = bytes(range(256)) + b"\r\n--x-2\r\n"
    file, model = parse_form(form(file=data, model="m"), KIND)
    assert (file.name, file.filename, file.data) == ("file", "a.wav", data)
    assert (model.name, model.data) == ("model", b"m")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (form(file=b"a"), "application/json"),
        (form(file=b"a"), "multipart/form-data"),
        (form(file=b"a")[:-6], KIND),
        (b"", KIND),
        (b"--x-1\r\n\r\n--x-1--", KIND),
        (b"--x-1\r\nContent-Type: a\r\n\r\n\r\n--x-1--", KIND),
        (b"--x-1\r\n" * 100_000 + b"--x-1--", KIND),
    ],
)
def test_what_is_no_form_is_refused(body: bytes, kind: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_form(body, kind)


def test_a_sound_is_asked_for_its_words() -> None:
    made = request(file=b"RIFF", model="m", language="de", prompt="Hallo", temperature="0.5", seed="3")
    (message,) = made.messages
    assert (made.model, message.parts[0].audio.data) == ("m", b"RIFF")
    assert "'de'" in message.parts[1].text
    assert "Hallo" in message.parts[1].text
    assert (made.params.sampling.temperature, made.params.sampling.seed) == (0.5, 3)
    assert request(file=b"RIFF").params.sampling.temperature == 0


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "file"),
        ({"response_format": "srt"}, "response_format"),
        ({"response_format": "verbose_json"}, "response_format"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"stream": "true"}, "stream"),
        ({"temperature": "warm"}, "temperature"),
        ({"model": b"\xff"}, "model"),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(fields: dict[str, str | bytes], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        request(**({"file": b"RIFF"} if fields else {}), **fields)
    assert caught.value.field == field


def test_chunks_become_one_text() -> None:
    made = Transcription()
    for text in (" Hello", " there "):
        made.add(0, tokens_pb2.TokenChunk(text=text))
    assert made.to_json()["text"] == "Hello there"
