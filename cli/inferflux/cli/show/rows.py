"""Tables that stay whole in a narrow terminal, and sizes in words."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_GAP = 2
_BYTE_UNITS = (" B", " KiB", " MiB", " GiB")


class Rows(Table):
    """A table of markup. Where the terminal is too narrow for it, each row is a paragraph: no name is cut.

    Args:
        last: what the last column may be wrapped to, in characters.
    """

    def __init__(self, last: int) -> None:
        super().__init__(box=None, header_style="dim", padding=(0, _GAP, 0, 0))
        self._last = last

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._least_width() <= options.max_width:
            yield from super().__rich_console__(console, options)
        else:
            yield from self._paragraphs()

    def _least_width(self) -> int:
        """Characters for every column in full, but for the last one."""
        widths = [
            max(Text.from_markup(cell).cell_len for cell in (str(column.header), *map(str, column.cells)))
            for column in self.columns
        ]
        *others, last = widths
        return sum(width + _GAP for width in others) + min(last, self._last)

    def _paragraphs(self) -> RenderResult:
        """The first heading; then of each row the first cell in a line of its own, and below it the others,
        each after its heading."""
        headings = [str(column.header) for column in self.columns]
        yield Text.from_markup(f"[dim]{headings[0]}[/]")
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            first, *others = map(str, cells)
            named = zip(headings[1:], others, strict=True)
            said = [f"[dim]{heading}[/] {cell}" if heading else cell for heading, cell in named if cell]
            if first:
                yield Text.from_markup(first, overflow="fold")
            yield Padding(Text.from_markup(" · ".join(said), overflow="fold"), (0, 0, 0, _GAP))


def make_table(*columns: str, last: int = 20) -> Table:
    """Columns by their headings; a leading > aligns to the right.

    Args:
        last: what is too wide wraps in the last column, which keeps this many characters.
    """
    table = Rows(last)
    for index, heading in enumerate(columns, start=1):
        table.add_column(
            heading.removeprefix(">"),
            justify="right" if heading.startswith(">") else "left",
            no_wrap=index < len(columns),
        )
    return table


def bytes_words(n: int) -> str:
    """`24 GiB`."""
    return scaled(n, 1024, _BYTE_UNITS)


def scaled(value: int, step: int, units: Sequence[str]) -> str:
    """A number in the first unit in which it is below `step`, in the last one otherwise."""
    left = float(value)
    for unit in units[:-1]:
        if left < step:
            return f"{_three_digits(left)}{unit}"
        left /= step
    return f"{_three_digits(left)}{units[-1]}"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"  # 1,010 KiB, not 1.01e+03
