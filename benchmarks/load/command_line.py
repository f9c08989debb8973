"""Parts that the command lines of benchmarks have in common."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


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


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
