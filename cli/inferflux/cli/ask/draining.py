"""A worker's draining on the terminal: a bar while it goes on, or a line per change where there is none."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from inferflux.cli.reach.errors import CommandError
from inferflux.cli.show.bars import bar
from inferflux.common.contract.errors import Unavailable
from inferflux.v1 import scheduler_pb2

Updates = AsyncGenerator[scheduler_pb2.DrainProgress, None]


async def follow(updates: Updates, worker_id: str, console: Console) -> None:
    """Show the progress until the worker may be stopped.

    Raises:
        CommandError: it was undone, or its progress cannot be asked for any more.
    """
    last: scheduler_pb2.DrainProgress | None = None
    with _Display(worker_id, console) as display:
        try:
            async with aclosing(updates):
                async for last in updates:
                    display.show(last)
        except Unavailable as error:
            if last is None:
                raise
            raise CommandError(f"{error.message}; {goes_on(worker_id)}") from None
    if last is None or not last.is_drained:
        raise CommandError(f"{worker_id} takes requests again: its draining was undone")
    console.print(f"{escape(worker_id)} may be stopped")


async def begin(updates: Updates, worker_id: str, console: Console) -> None:
    """Show the first answer, and leave the rest to itself."""
    async with aclosing(updates):
        progress = await anext(updates)
    if progress.is_drained:
        console.print(f"{escape(worker_id)} may be stopped")
    else:
        console.print(f"{escape(worker_id)} is draining: {requests_left(progress)}")


def requests_left(progress: scheduler_pb2.DrainProgress) -> str:
    """Number of requests left on a draining worker, in words."""
    n = progress.residents
    return "1 request left" if n == 1 else f"{n or 'no'} requests left"


def goes_on(worker_id: str) -> str:
    return f"{worker_id} goes on draining (`inferctl admin undrain {worker_id}` undoes it)"


class _Display:
    """Use as a context manager."""

    def __init__(self, worker_id: str, console: Console) -> None:
        self._worker_id = worker_id
        self._console = console
        self._most = 0
        self._said = ""
        self._progress = bar(
            console,
            TextColumn(f"draining [bold]{escape(worker_id)}[/]"),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(),
        )
        self._task = self._progress.add_task("", left="", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, progress: scheduler_pb2.DrainProgress) -> None:
        self._most = max(self._most, progress.residents)
        left = requests_left(progress)
        if self._console.is_terminal:
            done = self._most - progress.residents
            self._progress.update(self._task, total=self._most or None, completed=done, left=left)
        elif left != self._said and not progress.is_drained:
            self._console.print(f"{escape(self._worker_id)} is draining: {left}")
        self._said = left
