"""How tests run commands: none can hold its test up."""

from __future__ import annotations

import psutil
import pytest
from harness.commands import outcome_of, running


async def test_what_a_command_leaves_behind_holds_nothing_up_and_ends_with_it() -> None:
    async with running(["/bin/sh", "-c", "sleep 600 & echo $!"]) as run:
        code, out, _ = await run.ending()
        left = psutil.Process(int(out))
        assert left.is_running()
    assert code == 0
    _, alive = psutil.wait_procs([left], timeout=10)
    assert alive == [] or left.status() == psutil.STATUS_ZOMBIE


async def test_a_command_that_hangs_is_told_with_its_last_lines() -> None:
    with pytest.raises(AssertionError, match=r"did not end within 1 s:\nthe last"):
        await outcome_of(["/bin/sh", "-c", "echo the last; exec sleep 600"], limit_s=1.0)


async def test_a_command_that_ends_without_a_line_is_told_with_those_that_it_had() -> None:
    async with running(["/bin/sh", "-c", "cat; exit 3"], said=b"another") as run:
        with pytest.raises(AssertionError, match="ended without 'one':\nanother"):
            await run.until_says("one", 10.0)
