"""Errors of pydantic in plain words, for people who write settings or files of them."""

from __future__ import annotations

import re

_SUBJECT = re.compile(r"^(Input|String|Value|List|URL) should ")


def in_plain_words(kind: str, message: str, *, mapping: str, sequence: str) -> str:
    """Translate a problem that pydantic found: what the value must be.

    Args:
        kind: the problem's type, such as `missing`.
        mapping, sequence: what these are called where the value is written.
    """
    if kind == "missing":
        return "must be set"
    if kind in ("dict_type", "model_type"):
        return f"must be {mapping}"
    if kind in ("tuple_type", "list_type"):
        return f"must be {sequence}"
    if kind == "extra_forbidden":
        return "is not known"
    return _SUBJECT.sub("must ", message.removeprefix("Value error, "))
