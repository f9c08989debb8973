"""The constraint that a command's flags ask for."""

from __future__ import annotations

from pathlib import Path

import typer

from inferflux.cli.reach.bounds import read_text
from inferflux.v1 import generation_pb2

_FLAGS = ("--schema", "--json-object", "--grammar", "--regex", "--choice")


def constraint_of(
    schema: Path | None, *, is_json_object: bool, grammar: Path | None, regex: str | None, choices: list[str]
) -> generation_pb2.StructuredConstraint | None:
    """The one constraint that is asked for; None for none.

    A grammar's kind goes by its file name: `.lark` is Lark, any other is GBNF.

    Raises:
        typer.BadParameter: several are asked for, or a file cannot be read.
    """
    wanted = (schema, is_json_object, grammar, regex is not None, choices)
    given = [flag for flag, value in zip(_FLAGS, wanted, strict=True) if value]
    if len(given) > 1:
        raise typer.BadParameter(f"only one of {', '.join(given)} can be asked for")
    constraint = generation_pb2.StructuredConstraint()
    if schema is not None:
        constraint.json_schema = _text_of(schema)
    elif is_json_object:
        constraint.json_object = True
    elif grammar is not None and grammar.suffix == ".lark":
        constraint.lark = _text_of(grammar)
    elif grammar is not None:
        constraint.gbnf = _text_of(grammar)
    elif regex is not None:
        constraint.regex = regex
    elif choices:
        constraint.choice.texts.extend(choices)
    else:
        return None
    return constraint


def _text_of(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from None
