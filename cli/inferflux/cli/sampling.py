"""Fields of sampling that a command's flags name."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from google.protobuf import json_format

from inferflux.v1 import generation_pb2

_FLAG = "--sampling"
# Given by NAME=VALUE[,VALUE...], as texts.
_BREAKERS = "dry_sequence_breakers"
# A bias is of many tokens.
_NAMES = [f.name for f in generation_pb2.SamplingParams.DESCRIPTOR.fields if f.name != "logit_bias"]
_ESCAPES = {"\\n": "\n", "\\t": "\t"}


def sampling_of(given: Sequence[str]) -> generation_pb2.SamplingParams:
    """The fields that `given` sets, each as NAME=VALUE.

    Breakers are separated by commas; `\\n` and `\\t` are a line's end and a tab, and nothing stands for none.

    Raises:
        typer.BadParameter: there is no such field, or it takes no such value.
    """
    fields: dict[str, object] = {}
    for one in given:
        name, separator, value = one.partition("=")
        if not separator or name not in _NAMES:
            raise typer.BadParameter(f"{_FLAG} {one[:64]}: give NAME=VALUE, of {', '.join(_NAMES)}")
        fields[name] = {"texts": _texts(value)} if name == _BREAKERS else value
    try:
        return json_format.ParseDict(fields, generation_pb2.SamplingParams())
    except json_format.ParseError as error:
        raise typer.BadParameter(f"{_FLAG}: {error}") from None


def _texts(value: str) -> list[str]:
    for escape, text in _ESCAPES.items():
        value = value.replace(escape, text)
    return value.split(",") if value else []
