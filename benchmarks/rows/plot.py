"""Bars as an SVG, for documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_BAR = 18
_STEP = 30
_LABELS = 440
_SCALE = 260
_LONGEST = 1.5


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio, and what it should be at least."""

    title: str
    value: float
    target: float
    is_reached: bool


def ratio_bars(bars: Sequence[Bar]) -> str:
    """A bar for each ratio, with a line at its target."""
    height = _STEP * len(bars) + 10
    width = _LABELS + int(_SCALE * _LONGEST) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, one in enumerate(bars):
        parts += _bar(one, top=index * _STEP + 8)
    return "\n".join([*parts, "</svg>\n"])


def _bar(bar: Bar, *, top: int) -> list[str]:
    middle = top + _BAR - 5
    length = _SCALE * min(bar.value, _LONGEST)
    target = _LABELS + _SCALE * bar.target
    colour = "#3b7a57" if bar.is_reached else "#b5533c"
    return [
        f'<text x="{_LABELS - 8}" y="{middle}" text-anchor="end">{escape(bar.title)}</text>',
        f'<rect x="{_LABELS}" y="{top}" width="{length:.1f}" height="{_BAR}" fill="{colour}"/>',
        f'<line x1="{target:.1f}" x2="{target:.1f}" y1="{top - 4}" y2="{top + _BAR + 4}" stroke="black"/>',
        f'<text x="{max(_LABELS + length, target) + 6:.1f}" y="{middle}">{bar.value:.3f}</text>',
    ]
