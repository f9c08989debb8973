"""Put what was measured into a document, between two markers: no figure there is typed by hand.

python -m benchmarks.report --write docs/performance.md
python -m benchmarks.report --of scheduling --write docs/performance.md
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.command_line import make_parser
from benchmarks.rows import results
from benchmarks.rows.plot import ratio_bars
from benchmarks.rows.show import target_text, value_text

BEGIN = "<!-- results: written by benchmarks/report.py -->"
END = "<!-- end of results -->"
_COLUMNS = 118


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a document: what is put there, and where.

    Attributes:
        command: what measures it.
        file: where its figures are.
        has_picture: whether its ratios are drawn beside the document.
    """

    command: str
    file: Path
    begin: str = BEGIN
    end: str = END
    has_picture: bool = False


PARTS = {
    "bench": Part("make bench", results.LATEST, has_picture=True),
    "scheduling": Part(
        "make bench-scheduling",
        results.SCHEDULING,
        "<!-- scheduling: written by benchmarks/report.py -->",
        "<!-- end of scheduling -->",
    ),
}


class ReportError(Exception):
    """The document or the results are not as they should be; says how."""


def render(measured: Mapping[str, Any], command: str = PARTS["bench"].command) -> str:
    """The results as Markdown.

    Raises:
        ReportError: there are none.
    """
    rows = {key: row for key, row in measured.items() if key != results.ENVIRONMENT}
    if not rows:
        raise ReportError(f"nothing was measured yet: run `{command}`")
    about = measured[results.ENVIRONMENT]
    commits = sorted({row["commit"] for row in rows.values() if row["commit"]})
    days = sorted({row["measured_at"][:10] for row in rows.values()})
    measured_on = (
        f"Measured {' and '.join(dict.fromkeys([days[0], days[-1]]))} on {about['cores']} cores of "
        f"{about['cpu']}, at {', '.join(commits)}: Python {about['python']}, "
        f"llama-cpp-python {about['llama_cpp_python']}, grpcio {about['grpcio']}."
    )
    marks = {True: "yes", False: "**no**", None: ""}
    lines = [
        Line(key, row["title"], target_text(row), value_text(row), marks[row["reached"]], _spread(row["raw"]))
        for key, row in rows.items()
    ]
    return f"{textwrap.fill(measured_on, _COLUMNS)}\n\n{layout(lines)}"


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table, as text."""

    key: str
    title: str
    target: str
    measured: str
    reached: str
    runs: str


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


def insert(document: str, results_text: str, *, begin: str = BEGIN, end: str = END) -> str:
    """The document with what is between its markers replaced.

    Raises:
        ReportError: it has no such markers, or not one of each.
    """
    if document.count(begin) != 1 or document.count(end) != 1:
        raise ReportError(f"the document needs one line `{begin}` and one `{end}`")
    head, _, rest = document.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n\n{results_text}\n\n{end}{tail}"


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
        measured = results.load(options.results or part.file)
        text = render(measured, part.command)
        if options.write is None:
            print(text)
            return 0
        if part.has_picture:
            picture = options.write.with_name(f"{options.write.stem}.svg")
            picture.write_text(ratio_bars(measured))
            text += f"\n\n![Ratios to what we are held against, and their targets]({picture.name})"
        document = insert(options.write.read_text(), text, begin=part.begin, end=part.end)
        options.write.write_text(document)
    except (ReportError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
