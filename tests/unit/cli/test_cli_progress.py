"""What `inferctl up` draws of a start, on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from inferflux.cli.stack import EventKind, StackEvent
from inferflux.cli.stack.progress import StartDisplay


def a_display(height: int) -> tuple[StartDisplay, Console, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=height, color_system=None)
    return StartDisplay(console), console, out


def planned(display: StartDisplay, count: int) -> None:
    for number in range(count):
        display.observe(StackEvent(EventKind.PLANNED, f"worker-{number}"))


def last_frame(out: io.StringIO) -> str:
    return out.getvalue().rsplit("\x1b[2K", 1)[-1]


def test_a_start_that_was_interrupted_shows_ended_processes_not_failures() -> None:
    display, _, out = a_display(height=24)
    planned(display, 2)
    display.observe(StackEvent(EventKind.STOPPED, "worker-0"))
    display.observe(StackEvent(EventKind.STOPPED, "worker-1", "had to be killed"))
    display.close()
    lines = last_frame(out).splitlines()
    assert any(line.split()[:3] == ["○", "worker-0", "ended"] for line in lines)
    assert any(line.startswith("✗  worker-1") and "had to be killed" in line for line in lines)


def test_a_start_of_more_processes_than_lines_shows_those_that_are_not_ready() -> None:
    display, _, out = a_display(height=10)
    planned(display, 30)
    for number in range(25):
        display.observe(StackEvent(EventKind.STARTING, f"worker-{number}"))
        display.observe(StackEvent(EventKind.READY, f"worker-{number}"))
    drawn = last_frame(out)
    assert "25 of 30" in drawn
    assert "worker-29" in drawn
    assert "worker-3 " not in drawn
    display.close()
    assert all(f"worker-{number} " in last_frame(out) for number in range(30))
