"""Rules of guardrails as files have them (pure)."""

from __future__ import annotations

import json

from google.protobuf.json_format import ParseDict, ParseError

from inferflux.cli.reach.errors import CommandError
from inferflux.v1 import guardrails_pb2


def texts_of(data: bytes, path: str) -> list[str]:
    """The texts of a list, one a line; empty lines and spaces around a text do not count.

    Raises:
        CommandError: it is not UTF-8.
    """
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not text in UTF-8") from None
    return [text for line in lines if (text := line.strip())]


def rules_of_json(data: bytes, path: str) -> guardrails_pb2.GuardrailRules:
    """The rules of a set as `get --json` prints it, or of its `rules` alone.

    Raises:
        CommandError: it is neither.
    """
    try:
        given = json.loads(data)
        if not isinstance(given, dict):
            raise CommandError(f"{path} has no rules: it is no JSON object")
        if "rules" in given:
            return ParseDict(given, guardrails_pb2.Guardrails()).rules
        return ParseDict(given, guardrails_pb2.GuardrailRules())
    except (ValueError, ParseError) as error:
        raise CommandError(f"{path} has no rules that can be read: {error}") from None
