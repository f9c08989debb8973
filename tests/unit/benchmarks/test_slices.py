"""Two runs share the machine slice by slice: while one goes on, the other stands still."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.slices import Run, Side, Slice, of_own_time, overlap_s, side_by_side

# Writes down now and then what time it is, in a child of its own.
_SCRIPT = """
import os, sys, time
if os.fork() == 0:
    with open(sys.argv[1], "w") as out:
        for _ in range(150):
            print(time.perf_counter(), file=out, flush=True)
            time.sleep(0.002)
    os._exit(0)
os.wait()
"""


class Clock:
    """A run whose processes write down when they were running."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def __call__(self, *, side: Side) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", _SCRIPT, str(self._file))
        side.add(process.pid)
        assert await process.wait() == 0
        times = self.times()
        return {"began_s": times[0], "duration_s": times[-1] - times[0], "tokens": len(times)}

    def times(self) -> list[float]:
        return [float(line) for line in self._file.read_text().split()]


def test_each_run_has_the_machine_to_itself_in_its_slices(tmp_path: Path) -> None:
    clocks = [Clock(tmp_path / "a"), Clock(tmp_path / "b")]
    sides = [Side(), Side()]
    results = asyncio.run(side_by_side(list(zip(sides, clocks, strict=True)), slice_s=0.05))
    a, b = (side.slices for side in sides)
    assert len(a) > 2
    assert all(overlap_s(b, one) == 0.0 for one in a)
    for side, clock, result in zip(sides, clocks, results, strict=True):
        assert all(any(began <= t <= ended for began, ended in side.slices) for t in clock.times())
        assert result["duration_s"] < result["wall_s"]


class _Breaks:
    async def __call__(self, *, side: Side) -> dict[str, Any]:
        del side
        raise RuntimeError("no such server")


def test_what_was_stopped_goes_on_when_a_run_fails(tmp_path: Path) -> None:
    async def scene() -> str:
        idle = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
        try:
            runs: list[tuple[Side, Run]] = [(Side([idle.pid]), Clock(tmp_path / "a")), (Side(), _Breaks())]
            with pytest.raises(ExceptionGroup, match="unhandled errors") as caught:
                await side_by_side(runs, slice_s=0.05)
            assert caught.group_contains(RuntimeError, match="no such server")
            return psutil.Process(idle.pid).status()
        finally:
            idle.kill()
            await idle.wait()

    assert asyncio.run(scene()) != psutil.STATUS_STOPPED


def test_who_was_added_while_the_side_stands_still_stands_still() -> None:
    async def scene() -> None:
        side = Side()
        side.stop()
        late = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
        try:
            side.add(late.pid)
            async with asyncio.timeout(10):
                while psutil.Process(late.pid).status() != psutil.STATUS_STOPPED:
                    await asyncio.sleep(0.001)
        finally:
            late.kill()
            await late.wait()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("window", "expected"),
    [((0.0, 10.0), 3.0), ((1.5, 3.5), 1.0), ((2.0, 3.0), 0.0), ((4.5, 4.6), 0.1), ((9.0, 9.5), 0.0)],
)
def test_own_time_is_what_the_slices_have_of_a_window(window: Slice, expected: float) -> None:
    assert overlap_s([(1.0, 2.0), (3.0, 5.0)], window) == pytest.approx(expected)


def test_a_rate_is_of_own_time_and_stretched_times_are_left_out() -> None:
    result = {"began_s": 1.5, "duration_s": 3.5, "tokens": 50, "tokens_per_s": 14.3, "ttft_ms": {"p50": 9.0}}
    own = of_own_time(result, [(1.0, 2.0), (3.0, 5.0)])
    assert own["tokens_per_s"] == 20.0
    assert own["duration_s"] == 2.5
    assert own["wall_s"] == 3.5
    assert "ttft_ms" not in own
