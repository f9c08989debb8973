"""Tools of a file, and calls as people read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from inferflux.cli.reach.bounds import read_text
from inferflux.v1 import inference_pb2


def tools_of(path: Path | None) -> list[inference_pb2.Tool]:
    """The tools of a file: a JSON list, in OpenAI's form.

    Raises:
        typer.BadParameter: it cannot be read, or is no such list.
    """
    if path is None:
        return []
    try:
        listed = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from None
    if not isinstance(listed, list) or not listed:
        raise typer.BadParameter(f"{path} is no list of tools")
    return [_tool(one, f"{path}: tool {i}") for i, one in enumerate(listed)]


def spelled(call: inference_pb2.ToolCall) -> str:
    """A call in one line."""
    return f"{call.name} {call.arguments}"


def to_json(calls: Sequence[inference_pb2.ToolCall]) -> list[dict[str, str]]:
    return [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls]


def _tool(one: Any, where: str) -> inference_pb2.Tool:
    function = one.get("function", one) if isinstance(one, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise typer.BadParameter(f"{where} is no function with a name")
    description, parameters = function.get("description") or "", function.get("parameters")
    if not isinstance(description, str):
        raise typer.BadParameter(f"{where}: its description is no text")
    strict = function.get("strict") or False
    if not isinstance(strict, bool):
        raise typer.BadParameter(f"{where}: strict is neither true nor false")
    schema = "" if parameters is None else json.dumps(parameters, ensure_ascii=False)
    return inference_pb2.Tool(
        name=function["name"], description=description, parameters=schema, strict=strict
    )
