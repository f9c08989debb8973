"""Display of `inferctl up`: a live list while it starts, lines after that."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table

from . import EventKind, StackEvent

_WAITING, _STARTING, _READY, _FAILED = "dim", "yellow", "green", "red"


@dataclass(slots=True)
class _Row:
    kind: EventKind = EventKind.PLANNED
    detail: str = ""
    started_at: float = 0.0
    took_s: float = 0.0


class StartDisplay:
    """Follows a stack through its events. A terminal gets a live list of the start; a file, a line each."""

    def __init__(self, console: Console, *, says_end: bool = True) -> None:
        self._console = console
        self._says_end = says_end
        self._rows: dict[str, _Row] = {}
        self._began_at = time.monotonic()
        self._live: Live | None = None
        self._spinner = Spinner("dots", style=_STARTING)
        self.is_up = False

    def observe(self, event: StackEvent) -> None:
        """Show an event of the stack."""
        if self.is_up:
            self._say(event)
            return
        self._note(event)
        if self._console.is_terminal:
            self._refresh()
        elif event.kind is EventKind.READY:
            row = self._rows[event.process]
            self._console.print(f"{event.process}: ready after {row.took_s:.1f} s{_after(event.detail)}")

    def up(self) -> None:
        """Tell that everything is ready."""
        self.close()
        self.is_up = True
        self._console.print(
            f"[bold green]InferFlux is up[/] [dim]({time.monotonic() - self._began_at:.1f} s)[/]"
        )

    def ending(self) -> None:
        """The end was asked for."""
        self._console.print("\nending: running requests may finish; Ctrl-C again ends it at once")

    def close(self) -> None:
        """Stop drawing; what was drawn stays."""
        live, self._live = self._live, None  # first: the last drawing, which stays, has all rows
        if live is not None:
            live.stop()

    def _note(self, event: StackEvent) -> None:
        row = self._rows.setdefault(event.process, _Row())
        if event.kind is EventKind.STARTING:
            row.started_at = time.monotonic()
        if event.kind is EventKind.READY:
            row.took_s = time.monotonic() - row.started_at
        row.kind, row.detail = event.kind, event.detail

    def _say(self, event: StackEvent) -> None:
        name = f"[bold]{event.process}[/]"
        if event.kind in (EventKind.DIED, EventKind.ENGINE_DIED):
            self._console.print(f"[red]●[/] {name} {escape(event.detail)}")
        elif event.kind is EventKind.RESTARTED:
            self._console.print(f"[green]●[/] {name} is back")
        elif event.kind is EventKind.STOPPED and (self._says_end or event.detail):
            self._console.print(f"[dim]○[/] {name} ended{_after(event.detail)}")

    def _refresh(self) -> None:
        if self._live is None:
            self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=12)
            self._live.start()
        self._live.refresh()

    def _table(self) -> Table:
        """A row per process. While it is drawn and does not fit the terminal, ready processes are one row."""
        table = Table.grid(padding=(0, 2))
        rows = self._rows
        if self._live is not None and len(rows) > (room := max(self._console.height - 1, 2)):
            open_ = {name: row for name, row in rows.items() if row.kind is not EventKind.READY}
            count = f"{len(rows) - len(open_)} of {len(rows)}"
            table.add_row(f"[{_READY}]✓[/]", count, "[dim]ready[/]", "")
            rows = dict(list(open_.items())[: room - 1])
        for name, row in rows.items():
            table.add_row(*self._cells(name, row))
        return table

    def _cells(self, name: str, row: _Row) -> tuple[Spinner | str, str, str, str]:
        detail = f"[dim]{escape(row.detail)}[/]"
        if row.kind is EventKind.READY:
            return f"[{_READY}]✓[/]", name, f"[dim]{row.took_s:.1f} s[/]", detail
        if row.kind in (EventKind.STARTING, EventKind.WAITING):
            return self._spinner, name, f"[dim]{time.monotonic() - row.started_at:.0f} s[/]", detail
        if row.kind is EventKind.STOPPING:
            return self._spinner, f"[dim]{name}[/]", "", "[dim]ending[/]"
        if row.kind is EventKind.STOPPED:
            mark = f"[{_FAILED}]✗[/]" if row.detail else f"[{_WAITING}]○[/]"
            return mark, f"[dim]{name}[/]", "", detail if row.detail else "[dim]ended[/]"
        return f"[{_WAITING}]·[/]", f"[dim]{name}[/]", "", ""


def _after(detail: str) -> str:
    return f": {escape(detail)}" if detail else ""
