"""Rows as INI text, each a section, each field of its value a line with JSON. No I/O.

[policy]
revision = 1760000000123

[key "3f0c..."]
tenant = "acme"
scopes = "inference models"
"""

from __future__ import annotations

import configparser
import json
from collections.abc import Mapping

from .table import Row

_HEAD = "policy"


def to_ini(revision: int, rows: Mapping[Row, str]) -> str:
    """The text, in ASCII."""
    lines = [f"[{_HEAD}]", f"revision = {revision}"]
    for (kind, name), value in sorted(rows.items()):
        lines += ["", f"[{kind} {json.dumps(name)}]"]
        lines += [f"{field} = {json.dumps(content)}" for field, content in json.loads(value).items()]
    return "\n".join(lines) + "\n"


def from_ini(text: str) -> tuple[int, dict[Row, str]]:
    """The revision and the rows.

    Raises:
        ValueError: it is not such a text.
    """
    parser = configparser.RawConfigParser(
        default_section="", delimiters=("=",), comment_prefixes=("#",), empty_lines_in_values=False
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
        revision = parser.getint(_HEAD, "revision")
    except configparser.Error as error:
        raise ValueError(str(error)) from None
    rows: dict[Row, str] = {}
    for section in parser.sections():
        kind, _, name = section.partition(" ")
        if name:
            value = {field: json.loads(content) for field, content in parser.items(section)}
            rows[Row(kind, json.loads(name))] = json.dumps(value)
    return revision, rows
