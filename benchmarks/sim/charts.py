"""Figures as SVG for the documents, readable on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

_STYLE = """<style>
svg { --paper: #ffffff; --ink: #1f2328; --faint: #d0d7de;
      --c0: #0969da; --c1: #bc4c00; --c2: #1a7f37; --c3: #8250df; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0d1117; --ink: #e6edf3; --faint: #3d444d;
        --c0: #58a6ff; --c1: #f0883e; --c2: #3fb950; --c3: #bc8cff; }
}
.paper { fill: var(--paper); }
text { fill: var(--ink); font: 12px sans-serif; }
.title { font-weight: bold; font-size: 13px; }
.grid { stroke: var(--faint); }
.c0 { fill: var(--c0); stroke: var(--c0); } .c1 { fill: var(--c1); stroke: var(--c1); }
.c2 { fill: var(--c2); stroke: var(--c2); } .c3 { fill: var(--c3); stroke: var(--c3); }
.line { fill: none; stroke-width: 2; }
</style>"""

_WIDTH = 820
_LEFT = 230
_RIGHT = 90
_TOP = 56
_ROW = 22
_PLOT = _WIDTH - _LEFT - _RIGHT
# The longest bar.
_BARS = 350
_LINES_HEIGHT = 260

Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Range:
    """A row with a line from `low` to `high` and a dot at each of `low`, `middle` and `high`."""

    label: str
    colour: int
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    colour: int
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    colour: int
    points: Sequence[tuple[float, float]]


def ranges(title: str, unit: str, rows: Sequence[Range]) -> str:
    """Ranges on a logarithmic axis."""
    shown = [max(value, 1e-3) for row in rows for value in (row.low, row.high)]
    lowest, highest = _decades(shown)
    x = _log_scale(lowest, highest, _LEFT, _LEFT + _PLOT)
    parts = [_text(_LEFT, 40, unit)]
    bottom = _TOP + _ROW * len(rows)
    for tick in _ticks(lowest, highest):
        parts += [
            _line(x(tick), _TOP - 6, x(tick), bottom, "grid"),
            _text(x(tick), bottom + 16, f"{tick:g}", "middle"),
        ]
    for index, row in enumerate(rows):
        y = _TOP + _ROW * index + _ROW / 2
        low, middle, high = (x(max(value, 1e-3)) for value in (row.low, row.middle, row.high))
        style = f"c{row.colour}"
        parts.append(_text(_LEFT - 10, y + 4, row.label, "end"))
        parts.append(_line(low, y, high, y, f"{style} line"))
        parts += [_dot(low, y, 5, style), _dot(middle, y, 3, style), _dot(high, y, 3, style)]
        parts.append(_text(high + 10, y + 4, f"{row.high:.2f}"))
    return _svg(title, bottom + 26, parts)


def bars(title: str, unit: str, rows: Sequence[Bar], *, longest: float) -> str:
    """Bars from 0 to `longest`, with room for text behind them."""
    bottom = _TOP + _ROW * len(rows)
    parts = [_text(_LEFT, 40, unit)]
    for tick in (0.0, longest / 2, longest):
        at = _LEFT + _BARS * tick / longest
        parts += [_line(at, _TOP - 6, at, bottom, "grid"), _text(at, bottom + 16, f"{tick:g}", "middle")]
    for index, row in enumerate(rows):
        y = _TOP + _ROW * index
        length = _BARS * min(row.value, longest) / longest
        parts.append(_text(_LEFT - 10, y + 15, row.label, "end"))
        parts.append(
            f'<rect class="c{row.colour}" x="{_LEFT}" y="{y + 4}" width="{length:.1f}" height="{_ROW - 8}"/>'
        )
        parts.append(_text(_LEFT + length + 8, y + 15, row.text))
    return _svg(title, bottom + 26, parts)


def lines(title: str, x_unit: str, y_unit: str, rows: Sequence[Line]) -> str:
    """Lines on two logarithmic axes."""
    left, top, bottom = 80, _TOP, _TOP + _LINES_HEIGHT
    right = _WIDTH - 160
    x_low, x_high = _decades([x for row in rows for x, _ in row.points])
    y_low, y_high = _decades([y for row in rows for _, y in row.points])
    x, y = _log_scale(x_low, x_high, left, right), _log_scale(y_low, y_high, bottom, top)
    parts = [_text(left, 40, y_unit), _text(right, bottom + 34, x_unit, "end")]
    for tick in _ticks(x_low, x_high):
        parts += [
            _line(x(tick), top, x(tick), bottom, "grid"),
            _text(x(tick), bottom + 16, f"{tick:,g}", "middle"),
        ]
    for tick in _ticks(y_low, y_high):
        parts += [
            _line(left, y(tick), right, y(tick), "grid"),
            _text(left - 8, y(tick) + 4, f"{tick:g}", "end"),
        ]
    for index, row in enumerate(rows):
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in row.points)
        parts.append(f'<polyline class="line c{row.colour}" style="fill:none" points="{path}"/>')
        parts += [_dot(x(a), y(b), 3, f"c{row.colour}") for a, b in row.points]
        key_y = top + 10 + _ROW * index
        parts += [_dot(right + 20, key_y, 5, f"c{row.colour}"), _text(right + 32, key_y + 4, row.label)]
    return _svg(title, bottom + 46, parts)


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten around positive values."""
    low = 10.0 ** math.floor(math.log10(min(values)))
    high = 10.0 ** math.ceil(math.log10(max(values)))
    return low, max(high, low * 10)


def _ticks(low: float, high: float) -> Iterator[float]:
    tick = low
    while tick <= high * 1.001:
        yield float(f"{tick:g}")
        tick *= 10


def _log_scale(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (end - start) * math.log(value / low) / math.log(high / low)


def _text(x: float, y: float, text: str, anchor: str = "start", style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _dot(x: float, y: float, radius: float, style: str) -> str:
    return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
    )
    paper = f'<rect class="paper" width="{_WIDTH}" height="{height:g}"/>'
    return "\n".join([head, _STYLE, paper, _text(12, 20, title, style="title"), *parts, "</svg>\n"])
