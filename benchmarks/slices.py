"""Runs at the same time, each with the machine to itself for a slice of it.

A virtual machine's speed may double or halve within minutes. Two runs one after the other then compare the
minutes, not what was run. Here both are under way, and while the processes of one go on, those of the other
are stopped: whatever the machine does meets both. A rate counts the time of a run's own slices.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import psutil

SLICE_S = 2.0
"""Long against an engine step, short against the machine's moods."""

# Times to which the stops of a run have added.
_STRETCHED = ("ttft_ms", "itl_ms", "e2e_ms")

Slice = tuple[float, float]
"""(began, ended), of time.perf_counter."""


class Side:
    """The processes of one run, and when they went on.

    Args:
        pids: what runs already; children, present and future, belong to it.
    """

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self._roots = list(pids)
        self._is_stopped = False
        self.slices: list[Slice] = []

    def add(self, pid: int) -> None:
        """Have a new process go on and stop with the others."""
        self._roots.append(pid)
        if self._is_stopped:
            self.stop()

    def stop(self) -> None:
        """Stop every process, until `go_on`."""
        self._is_stopped = True
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def go_on(self) -> None:
        self._is_stopped = False
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    @contextlib.contextmanager
    def slice(self) -> Iterator[None]:
        """A time in which the processes go on, and at the end of which they stop."""
        began = time.perf_counter()
        self.go_on()
        try:
            yield
        finally:
            self.stop()
            self.slices.append((began, time.perf_counter()))

    def _processes(self) -> Iterator[psutil.Process]:
        for pid in self._roots:
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(pid)
                yield root
                yield from root.children(recursive=True)


class Run(Protocol):
    """Measures something with processes that it adds to `side`; its result says when, and how many tokens."""

    def __call__(self, *, side: Side) -> Awaitable[dict[str, Any]]: ...


async def side_by_side(runs: Sequence[tuple[Side, Run]], slice_s: float = SLICE_S) -> list[dict[str, Any]]:
    """Make these runs at the same time, in slices; returns their results, with rates of their own time.

    Who is done before the others leaves its slices unused.

    Raises:
        ExceptionGroup: what the runs raise.
    """
    sides = [side for side, _ in runs]
    try:
        for side in sides:
            side.stop()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_result(run, side)) for side, run in runs]
            while not all(task.done() for task in tasks):
                for side in sides:
                    with side.slice():
                        await asyncio.wait(tasks, timeout=slice_s)
    finally:
        for side in sides:
            side.go_on()
    return [of_own_time(task.result(), side.slices) for task, side in zip(tasks, sides, strict=True)]


async def _result(run: Run, side: Side) -> dict[str, Any]:
    return await run(side=side)


def of_own_time(result: dict[str, Any], slices: Iterable[Slice]) -> dict[str, Any]:
    """`result` with the seconds and the tokens per second of its own slices, and without stretched times."""
    began, wall_s = float(result["began_s"]), float(result["duration_s"])
    own_s = overlap_s(slices, (began, began + wall_s))
    rate = result["tokens"] / own_s if own_s > 0 else 0.0
    kept = {name: value for name, value in result.items() if name not in _STRETCHED}
    return {**kept, "duration_s": round(own_s, 4), "wall_s": wall_s, "tokens_per_s": round(rate, 2)}


def overlap_s(slices: Iterable[Slice], window: Slice) -> float:
    """Seconds of `window` that are in `slices`, which do not overlap."""
    began, ended = window
    return sum(max(0.0, min(end, ended) - max(start, began)) for start, end in slices)
