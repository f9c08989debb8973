"""Twelve hosts in network namespaces, and what clients see of faults. Skipped where none can be made."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from harness.commands import outcome_of, running

pytestmark = pytest.mark.long

TESTS = Path(__file__).resolve().parents[1]
# `python -m fleet` says so where the machine lacks something.
SKIPPED = 77
LIMIT_S = 420.0
UP_LIMIT_S = 180.0
GONE_LIMIT_S = 30.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fleet", *arguments]


def environment(**more: str) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(TESTS), **more}


async def fleet(*arguments: str) -> None:
    """Run cases in a process of its own, which is in another namespace than this one."""
    code, out, err = await outcome_of(command(*arguments), env=environment(), limit_s=LIMIT_S)
    skip_if(code, err)
    assert code == 0, out + err


def skip_if(code: int | None, said: str) -> None:
    if code == SKIPPED:
        pytest.skip(said.strip().splitlines()[-1])


def processes_of(folder: Path) -> list[psutil.Process]:
    """Those of a run whose files are in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.timeout(LIMIT_S + 60)
async def test_workers_that_are_parted_from_each_other_change_no_token() -> None:
    await fleet("roles", "--seconds", "20", "--streams", "6")


@pytest.mark.timeout(LIMIT_S + 60)
async def test_faults_of_single_hosts_are_not_seen_by_clients() -> None:
    await fleet("killed:primary", "minority:leader", "deaf:worker-1", "killed:gateway-0", "--lasts", "4")


@pytest.mark.timeout(LIMIT_S + 60)
async def test_clocks_that_differ_by_minutes_move_no_deadline() -> None:
    await fleet("clocks", "--seconds", "15")


@pytest.mark.timeout(LIMIT_S + 60)
async def test_random_faults_over_a_poor_network_lose_nothing() -> None:
    await fleet("chaos", "--seconds", "25", "--seed", "1")


@pytest.mark.timeout(UP_LIMIT_S + LIMIT_S + 60)
async def test_a_run_that_is_killed_leaves_nothing_to_another_one(tmp_path: Path) -> None:
    """Not even processes that stand still. The other one runs beside it first."""
    env = environment(TMPDIR=str(tmp_path))
    async with running(command("calm", "--seconds", "600", "--verbose"), env) as first:
        try:
            await first.until_says("case calm begins", UP_LIMIT_S)
        except AssertionError:
            skip_if(first.process.poll(), first.tail)
            raise
        await fleet("calm", "--seconds", "5")
        left = processes_of(tmp_path)
        worker = next(each for each in left if "inferflux.worker" in each.cmdline())
        worker.suspend()
        os.kill(first.pid, signal.SIGKILL)
        gone, alive = await asyncio.to_thread(psutil.wait_procs, left, GONE_LIMIT_S)
        assert len(gone) > 10
        assert alive == []
    await fleet("calm", "--seconds", "5")
