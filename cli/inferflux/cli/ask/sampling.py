"""Fields of sampling that a command's flags name."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from google.protobuf import json_format

from inferflux.v1 import generation_pb2

_FLAG = "--sampling"
# Given by NAME=VALUE[,VALUE...], as texts.
_BREAKERS = "dry_sequence_breakers"
# Given by NAME=ID:BIAS[,ID:BIAS...].
_BIASES = "logit_bias"
_NAMES = [f.name for f in generation_pb2.SamplingParams.DESCRIPTOR.fields]
_ESCAPES = {"\\n": "\n", "\\t": "\t"}


def sampling_of(given: Sequence[str]) -> generation_pb2.SamplingParams:
    """The fields that `given` sets, each as NAME=VALUE.

    Breakers are separated by commas; `\\n` and `\\t` are a line's end and a tab, and nothing stands for none.
    Biases are `ID:BIAS`, separated by commas.

    Raises:
        typer.BadParameter: there is no such field, or it takes no such value.
    """
    fields: dict[str, object] = {}
    for one in given:
        name, separator, value = one.partition("=")
        if not separator or name not in _NAMES:
            raise typer.BadParameter(f"{_FLAG} {one[:64]}: give NAME=VALUE, of {', '.join(_NAMES)}")
        if name == _BREAKERS:
            fields[name] = {"texts": _texts(value)}
        else:
            fields[name] = _biases(value) if name == _BIASES else value
    try:
        return json_format.ParseDict(fields, generation_pb2.SamplingParams())
    except json_format.ParseError as error:
        raise typer.BadParameter(f"{_FLAG}: {error}") from None


def _biases(value: str) -> dict[str, str]:
    biases: dict[str, str] = {}
    for one in value.split(","):
        token, separator, bias = one.partition(":")
        if not (separator and token and bias):
            raise typer.BadParameter(f"{_FLAG} {_BIASES}: give ID:BIAS[,ID:BIAS...], not {one[:64]!r}")
        biases[token] = bias
    return biases


def _texts(value: str) -> list[str]:
    for escape, text in _ESCAPES.items():
        value = value.replace(escape, text)
    return value.split(",") if value else []
