"""Progress bars of commands."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, ProgressColumn


def bar(console: Console, *columns: ProgressColumn) -> Progress:
    """A bar that goes when it is done. A file gets nothing, where it would get an empty line."""
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
