"""Durations as people write them: `30s`, `15m`, `24h`, `90d`."""

from __future__ import annotations

import re

import typer

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,9})([smhd])")


def seconds_of(text: str, option: str) -> int:
    """Raises:
    typer.BadParameter: it is none; names the option.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{option} is a number and one of s, m, h, d, such as 24h")
    return int(match[1]) * _UNITS[match[2]]
