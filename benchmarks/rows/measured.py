"""The end of a benchmark's command: measure, print, write."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.load.command_line import write_json

from .lab import LabError


def measured(
    options: argparse.Namespace,
    console: Console,
    measuring: Coroutine[Any, Any, dict[str, Any]],
    table_of: Callable[[dict[str, Any]], Table],
) -> int:
    """Measure, print the figures, and write them to the file of `--json`; return the exit code."""
    try:
        figures = asyncio.run(measuring)
    except (LabError, TimeoutError) as error:
        console.print(str(error) or "a stack was not up in time", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    console.print(table_of(figures))
    write_json(options, figures)
    return 0
