"""Logs of all processes in one stream, as they are written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from .supervisor import Stack

_POLL_S = 0.1
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


class LogTail:
    """The whole lines a file has gained since last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new_lines(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.decode(errors="replace").splitlines()


async def follow_logs(stack: Stack, console: Console) -> None:
    """Print what every process of the stack logs, each line led by its process, until cancelled."""
    tails: dict[str, LogTail] = {}
    while True:
        for name, process in stack.processes.items():
            tail = tails.setdefault(name, LogTail(process.log_file))
            colour = _COLOURS[list(stack.processes).index(name) % len(_COLOURS)]
            for line in tail.new_lines():
                console.print(f"[{colour}]{name:>10}[/] [dim]|[/] {escape(line)}", soft_wrap=True)
        await asyncio.sleep(_POLL_S)
