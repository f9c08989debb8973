"""Put what was measured into a document, between two markers: no figure there is typed by hand.

Rows that the document has and the results have not stay, if they are of the same machine and versions.

python -m benchmarks.report --write docs/performance.md
python -m benchmarks.report --of scheduling --write docs/performance.md
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.load.command_line import make_parser
from benchmarks.rows import results
from benchmarks.rows.plot import Bar, ratio_bars
from benchmarks.rows.show import target_text, value_text
from benchmarks.rows.table import ROWS, Row
from benchmarks.scheduling.rows import ROWS as SCHEDULING_ROWS

BEGIN = "<!-- results: written by benchmarks/report.py -->"
END = "<!-- end of results -->"
_COLUMNS = 118


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a document: what is put there, and where.

    Attributes:
        command: what measures it.
        file: where its figures are.
        rows: those that it may have, in order.
        has_picture: whether its ratios are drawn beside the document.
    """

    command: str
    file: Path
    rows: Mapping[str, Row]
    begin: str = BEGIN
    end: str = END
    has_picture: bool = False


PARTS = {
    "bench": Part("make bench", results.LATEST, ROWS, has_picture=True),
    "scheduling": Part(
        "make bench-scheduling",
        results.SCHEDULING,
        SCHEDULING_ROWS,
        "<!-- scheduling: written by benchmarks/report.py -->",
        "<!-- end of scheduling -->",
    ),
}


class ReportError(Exception):
    """The document or the results are not as they should be; says how."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table, as text."""

    key: str
    title: str
    target: str
    measured: str
    reached: str
    runs: str


@dataclass(frozen=True, slots=True)
class Table:
    """The lines by their keys, and what they were measured on.

    Attributes:
        days: when.
        commits: of what.
        machine: its cores. versions: of what ran there.
    """

    lines: Mapping[str, Line]
    days: frozenset[str]
    commits: frozenset[str]
    machine: str
    versions: str

    def text(self) -> str:
        """The table as Markdown."""
        days = sorted(self.days)
        measured_on = (
            f"Measured {' and '.join(dict.fromkeys([days[0], days[-1]]))} on {self.machine}, "
            f"at {', '.join(sorted(self.commits))}: {self.versions}."
        )
        return (
            f"{textwrap.fill(measured_on, _COLUMNS, break_on_hyphens=False)}\n\n{layout(self.lines.values())}"
        )

    def beside(self, older: Table, order: Iterable[str]) -> Table:
        """This one, and the lines that only the older one has, if it is of the same machine and versions."""
        if (older.machine, older.versions) != (self.machine, self.versions):
            return self
        if older.lines.keys() <= self.lines.keys():
            return self
        lines = {**older.lines, **self.lines}
        return replace(
            self,
            lines={key: lines[key] for key in order if key in lines},
            days=self.days | older.days,
            commits=self.commits | older.commits,
        )


def table_of(measured: Mapping[str, Any], command: str = PARTS["bench"].command) -> Table:
    """The results as text.

    Raises:
        ReportError: there are none.
    """
    rows = {key: row for key, row in measured.items() if key != results.ENVIRONMENT}
    if not rows:
        raise ReportError(f"nothing was measured yet: run `{command}`")
    about = measured[results.ENVIRONMENT]
    marks = {True: "yes", False: "**no**", None: ""}
    return Table(
        {
            key: Line(
                key,
                row["title"],
                target_text(row),
                value_text(row),
                marks[row["reached"]],
                _spread(row["raw"]),
            )
            for key, row in rows.items()
        },
        days=frozenset(row["measured_at"][:10] for row in rows.values()),
        commits=frozenset(row["commit"] for row in rows.values() if row["commit"]),
        machine=f"{about['cores']} cores of {about['cpu']}",
        versions=(
            f"Python {about['python']}, llama-cpp-python {about['llama_cpp_python']}, "
            f"grpcio {about['grpcio']}"
        ),
    )


def read(text: str) -> Table | None:
    """Return the table that was written before; None if there is none in this text.

    Raises:
        ReportError: a row has no line of runs.
    """
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    said = [re.fullmatch(r"Measured (.+?) on (.+?), at (.*?): (Python .+)\.", one) for one in paragraphs]
    if (about := next(filter(None, said), None)) is None:
        return None
    days, machine, commits, versions = about.groups()
    runs = {
        number: (key, " ".join(words.split()))
        for number, key, words in re.findall(r"^(\d+)\. `(\w+)`:?(.*(?:\n +.+)*)", text, re.MULTILINE)
    }
    lines: dict[str, Line] = {}
    for number, title, target, measured, reached in re.findall(
        r"^\| (\d+) \| (.*) \| (.*) \| (.*) \| (.*) \|$", text, re.MULTILINE
    ):
        if number not in runs:
            raise ReportError(f"row {number} of the document has no line of runs")
        key, words = runs[number]
        lines[key] = Line(key, title, target, measured, reached, words)
    return Table(lines, frozenset(days.split(" and ")), frozenset(commits.split(", ")), machine, versions)


def layout(lines: Iterable[Line]) -> str:
    """A table of the figures, and behind it what each was made of, by its number."""
    table = ["| | what | target | measured | reached |", "|--:|---|---|---|---|"]
    runs = ["The runs that each row was made of, and the name that `--only` takes:", ""]
    for number, line in enumerate(lines, 1):
        table.append(f"| {number} | {line.title} | {line.target} | {line.measured} | {line.reached} |")
        text = f"{number}. `{line.key}`: {line.runs}" if line.runs else f"{number}. `{line.key}`"
        indent = " " * (len(str(number)) + 2)
        runs.append(textwrap.fill(text, _COLUMNS, subsequent_indent=indent, break_on_hyphens=False))
    return "\n".join([*table, "", *runs])


def _spread(raw: Mapping[str, Any]) -> str:
    """The figure of every round, or tokens/s of every run of both sides: a reader sees how much they vary."""
    named = f" ({server})" if (server := _server(raw)) else ""
    if "each" in raw:
        return ", ".join(f"{one:.4g}" for one in raw["each"]) + named
    sides = {"ours": "ours", "bare_loop": "bare loop", "llama_server": f"llama.cpp's{named}"}
    rates = {
        label: [f"{run['tokens_per_s']:.0f}" for run in raw[side]]
        for side, label in sides.items()
        if isinstance(raw.get(side), list)
    }
    if len(rates) < 2:
        return ""
    return "; ".join(f"{label} {', '.join(values)}" for label, values in rates.items()) + " tokens/s"


def _server(raw: Mapping[str, Any]) -> str:
    """Name the server of llama.cpp that the figure was taken against; "" for none."""
    return ", ".join(dict.fromkeys(run["server"] for run in raw.get("llama_server", ()) if "server" in run))


def _bars(lines: Iterable[Line]) -> list[Bar]:
    """The ratios that are to be large, and were measured."""
    return [
        Bar(line.title, float(line.measured), float(line.target.split()[1]), is_reached=line.reached == "yes")
        for line in lines
        if line.target.startswith("≥") and line.measured != "-"
    ]


def insert(document: str, results_text: str, *, begin: str = BEGIN, end: str = END) -> str:
    """The document with what is between its markers replaced.

    Raises:
        ReportError: it has no such markers, or not one of each.
    """
    head, _, tail = _parted(document, begin, end)
    return f"{head}{begin}\n\n{results_text}\n\n{end}{tail}"


def _parted(document: str, begin: str, end: str) -> tuple[str, str, str]:
    """What is before the markers, between them and after them."""
    if document.count(begin) != 1 or document.count(end) != 1:
        raise ReportError(f"the document needs one line `{begin}` and one `{end}`")
    head, _, rest = document.partition(begin)
    old, _, tail = rest.partition(end)
    return head, old, tail


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--of", choices=list(PARTS), default="bench", help="which table (default: %(default)s)"
    )
    parser.add_argument("--results", type=Path, help="default: the file that what measures it writes")
    parser.add_argument("--write", type=Path, metavar="DOCUMENT", help="default: print what would go there")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse(arguments)
    part = PARTS[options.of]
    try:
        table = table_of(results.load(options.results or part.file), part.command)
        if options.write is None:
            print(table.text())
            return 0
        document = options.write.read_text()
        if (older := read(_parted(document, part.begin, part.end)[1])) is not None:
            table = table.beside(older, part.rows)
        text = table.text()
        if part.has_picture:
            picture = options.write.with_name(f"{options.write.stem}.svg")
            picture.write_text(ratio_bars(_bars(table.lines.values())))
            text += f"\n\n![Ratios to what we are held against, and their targets]({picture.name})"
        options.write.write_text(insert(document, text, begin=part.begin, end=part.end))
    except (ReportError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
