"""Bars as an SVG, for documents."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

_BAR = 18
_STEP = 30
_LABELS = 440
_SCALE = 260
_LONGEST = 1.5


def ratio_bars(measured: Mapping[str, Any]) -> str:
    """A bar for each measured throughput ratio, with a line at its target."""
    rows = [
        row
        for row in measured.values()
        if row.get("direction") == ">=" and row.get("value") is not None and row.get("target")
    ]
    height = _STEP * len(rows) + 10
    width = _LABELS + int(_SCALE * _LONGEST) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, row in enumerate(rows):
        parts += _bar(row, top=index * _STEP + 8)
    return "\n".join([*parts, "</svg>\n"])


def _bar(row: Mapping[str, Any], *, top: int) -> list[str]:
    middle = top + _BAR - 5
    length = _SCALE * min(row["value"], _LONGEST)
    target = _LABELS + _SCALE * row["target"]
    colour = "#3b7a57" if row["reached"] else "#b5533c"
    return [
        f'<text x="{_LABELS - 8}" y="{middle}" text-anchor="end">{escape(row["title"])}</text>',
        f'<rect x="{_LABELS}" y="{top}" width="{length:.1f}" height="{_BAR}" fill="{colour}"/>',
        f'<line x1="{target:.1f}" x2="{target:.1f}" y1="{top - 4}" y2="{top + _BAR + 4}" stroke="black"/>',
        f'<text x="{max(_LABELS + length, target) + 6:.1f}" y="{middle}">{row["value"]:.3f}</text>',
    ]
