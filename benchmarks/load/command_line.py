"""What the command lines of benchmarks have in common."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def make_parser(doc: str | None, *, prog: str | None = None) -> argparse.ArgumentParser:
    """A parser whose help begins with a module's docstring as it is written."""
    return argparse.ArgumentParser(
        prog=prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_json(parser: argparse.ArgumentParser, what: str = "the figures") -> None:
    """Give it `--json FILE`, for `write_json`."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {what} there")


def write_json(options: argparse.Namespace, figures: Any) -> None:
    """Write figures to the file of `--json`, if one is given."""
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def show_figures(options: argparse.Namespace, figures: Mapping[str, float]) -> None:
    """Print figures as a table, and write them to the file of `--json`, if one is given."""
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:.4g}")
    Console().print(table)
    write_json(options, figures)


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
