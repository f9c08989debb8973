"""Mooncake's traces: JSON lines with `timestamp` in ms, `input_length`, `output_length` and `hash_ids`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .request import BLOCK_TOKENS, TraceError, TraceRequest

CONVERSATION = Path(__file__).parents[3] / "shared/data/traces/mooncake-conversation.jsonl"

# A longer line is no request of a trace, and a longer prompt is none of a model.
_LINE_CHARS = 1 << 20
_MOST_TOKENS = 1 << 22


def read(path: Path) -> Iterator[TraceRequest]:
    """Yield the requests of a file, a line at a time.

    Raises:
        TraceError: it is not there, or a line is not as it should be.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            number = 0
            while line := lines.readline(_LINE_CHARS):
                number += 1
                if line.strip():
                    yield _request(line, f"{path.name}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error


def _request(line: str, where: str) -> TraceRequest:
    try:
        told = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{where}: no JSON: {error}") from error
    if not isinstance(told, dict):
        raise TraceError(f"{where}: a request is an object")
    prompt = _count(told, "input_length", where, least=1)
    blocks = told.get("hash_ids")
    if not isinstance(blocks, list) or not all(type(block) is int and block >= 0 for block in blocks):
        raise TraceError(f"{where}: hash_ids is a list of whole numbers")
    if len(blocks) != -(-prompt // BLOCK_TOKENS):
        raise TraceError(f"{where}: {len(blocks)} hash_ids are not those of {prompt} tokens")
    timestamp = _count(told, "timestamp", where, most=1 << 53)
    output = _count(told, "output_length", where)
    return TraceRequest(timestamp / 1000, prompt, max(1, output), tuple(blocks))


def _count(told: dict[str, Any], name: str, where: str, *, least: int = 0, most: int = _MOST_TOKENS) -> int:
    value = told.get(name)
    if type(value) is not int or not least <= value <= most:
        raise TraceError(f"{where}: {name} is a whole number from {least} to {most}")
    return value
