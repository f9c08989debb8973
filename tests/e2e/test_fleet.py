"""Twelve hosts in network namespaces, and what clients see of faults. Skipped where none can be made."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
# `python -m fleet` says so where the machine lacks something.
SKIPPED = 77
LIMIT_S = 420.0


async def fleet(*arguments: str) -> None:
    """Run cases in a process of its own, which is in another namespace than this one."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "fleet", *arguments),
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            said, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    text = said.decode(errors="replace")
    if process.returncode == SKIPPED:
        pytest.skip(text.strip().splitlines()[-1])
    assert process.returncode == 0, text


@pytest.mark.timeout(LIMIT_S + 60)
async def test_faults_of_single_hosts_are_not_seen_by_clients() -> None:
    await fleet("killed:primary", "minority:leader", "deaf:worker-1", "killed:gateway-0", "--lasts", "4")


@pytest.mark.timeout(LIMIT_S + 60)
async def test_random_faults_over_a_poor_network_lose_nothing() -> None:
    await fleet("chaos", "--seconds", "25", "--seed", "1")
