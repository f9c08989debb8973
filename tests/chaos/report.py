"""Breaches, counts, and the lines people read."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from .transcript import Transcript

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Breach:
    """Something that must never happen; `about` is a request id or a process."""

    at_s: float
    about: str
    what: str

    def __str__(self) -> str:
        return f"{self.about} at {self.at_s:.1f} s: {self.what}"


class Tally:
    """How requests ended (pure)."""

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.ends: Counter[str] = Counter()
        self.moved = 0
        self.resumed = 0
        self.longest_silence_s = 0.0

    def add(self, transcript: Transcript) -> None:
        self.requests += 1
        self.tokens += transcript.offset
        self.ends[_end(transcript)] += 1
        self.moved += len(transcript.epochs) > 1
        self.resumed += transcript.resumes > 0
        self.longest_silence_s = max(self.longest_silence_s, transcript.longest_silence_s)


def _end(transcript: Transcript) -> str:
    if transcript.has_left:
        return "left"
    if transcript.failure:
        return "excused" if transcript.is_excused else "failed"
    return "cancelled" if transcript.is_cancelled else "whole"


def summary(
    *,
    seed: int,
    seconds: float,
    tally: Tally,
    faults: Mapping[str, int],
    skipped: int,
    breaches: int,
    fetched: int | None = None,
) -> str:
    """The one line at the end.

    Args:
        fetched: how often workers have fetched KV state; None: they could not.
    """
    ends = ", ".join(f"{n:,} {end}" for end, n in tally.ends.most_common())
    kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(faults.items()))
    skips = f", {skipped} skipped" if skipped else ""
    fetches = "" if fetched is None else f"state fetched {fetched} times, "
    verdict = f"{breaches} BREACHES" if breaches != 1 else "1 BREACH"
    return (
        f"chaos: seed {seed}, {seconds:g} s: {tally.requests:,} requests ({ends or 'none'}), "
        f"{tally.tokens:,} tokens, {tally.moved} moved, {tally.resumed} resumed, "
        f"longest silence {tally.longest_silence_s:.1f} s, {fetches}"
        f"{sum(faults.values())} faults ({kinds or 'none'}{skips}): {verdict if breaches else 'no breach'}"
    )


class Report:
    """The run as it is told: a line that changes, and all of it in `timeline.log` in the run's folder."""

    def __init__(self, folder: Path, *, is_verbose: bool) -> None:
        self.tally = Tally()
        self.breaches: list[Breach] = []
        self._timeline = folder / "timeline.log"
        self._is_verbose = is_verbose
        self._console = Console(highlight=False, soft_wrap=True)
        self._last = "starting"
        self._now_s = 0.0

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Draw the line, where there is a terminal to draw on."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, get_renderable=self._line, refresh_per_second=8, transient=True):
            yield

    @property
    def last(self) -> str:
        """The event before."""
        return self._last

    def at(self, now_s: float) -> None:
        """Seconds since the load began."""
        self._now_s = now_s

    def event(self, what: str) -> None:
        self._last = what
        self._write(what)
        if self._is_verbose:
            self._console.print(f"[dim]{self._now_s:7.2f} s[/]  {escape(what)}")

    def ended(self, transcript: Transcript) -> None:
        self.tally.add(transcript)
        for what in transcript.breaches():
            self.breach(transcript.request_id, f"{what} ({transcript.describe()})")

    def breach(self, about: str, what: str) -> None:
        found = Breach(self._now_s, about, what)
        self.breaches.append(found)
        self._write(f"BREACH {found}")
        if self._is_verbose:
            self._console.print(f"[red]{self._now_s:7.2f} s  BREACH[/]  {escape(f'{about}: {what}')}")

    def close(self, line: str, logs: Path | None) -> None:
        """Say how it was.

        Args:
            logs: where they are kept; None if they are not.
        """
        for found in self.breaches[:_SHOWN]:
            self._console.print(f"[red]breach[/]  {escape(str(found))}")
        if len(self.breaches) > _SHOWN:
            self._console.print(f"... and {len(self.breaches) - _SHOWN} more in timeline.log")
        if logs is not None:
            self._console.print(f"logs: {logs}")
        self._write(line)
        self._console.print(line, style="bold red" if self.breaches else "bold green")

    def _line(self) -> Text:
        tally = self.tally
        return Text(
            f"{self._now_s:5.0f} s  {tally.requests:,} requests  {tally.tokens:,} tokens  "
            f"{len(self.breaches)} breaches  {self._last}",
            overflow="ellipsis",
            no_wrap=True,
        )

    def _write(self, line: str) -> None:
        with self._timeline.open("a") as file:
            file.write(f"{self._now_s:8.2f} {line}\n")
