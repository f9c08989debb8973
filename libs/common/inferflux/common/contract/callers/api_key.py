"""Format of an API key: `ifx_` and 43 URL-safe characters. No I/O."""

from __future__ import annotations

import re

PREFIX = "ifx_"

_SECRET = re.compile(r"ifx_[A-Za-z0-9_-]{43}")


def is_well_formed(credential: str) -> bool:
    """True if `credential` could be an API key at all."""
    return _SECRET.fullmatch(credential) is not None


def without_secrets(text: str) -> str:
    """A text with nothing that could be an API key: some callers send one where a model or a path belongs."""
    return _SECRET.sub(f"{PREFIX}...", text) if PREFIX in text else text
