"""What requests wait when the partition of their model moves from one scheduler to another.

    python -m benchmarks.partition_moves [--rounds 3] [--json FILE]

A stack with two schedulers, eight partitions, and workers without a model (docs/operations.md). A short
request is sent every 20 ms. The scheduler that leads their model's partition leaves in order, starts again
and takes the partition back, and is killed (SIGKILL), in turn. Prints, for each, the longest time that a
request waited for its first token, and how many failed; beside that of a window in which nothing happens.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.command_line import add_json, make_parser, positive, write_json
from benchmarks.scheduling.ground import Ground, ground, until_so
from benchmarks.scheduling.streams import Underway, ends
from benchmarks.stats import median
from inferflux.cli.stack import StackOptions
from inferflux.common.contract.partitions import divide

_PARTITIONS = 8
_EVERY_S = 0.02
_WINDOW_S = 6.0
_LIMIT_S = 60.0
_PROMPT, _TOKENS = 16, 2
_EVENTS = ("nothing", "it leaves", "it comes back", "it is killed")


async def _leader(on: Ground) -> str:
    """Who leads the partition of the stack's model."""
    name = next(each.name for each in divide(_PARTITIONS) if each.has(on.model))
    status = await on.admin.status()
    return next((each.leader for each in status.partitions if each.partition == name), "")


async def _until_leader(on: Ground, wanted: Callable[[str], bool]) -> str:
    async def is_so() -> bool:
        return wanted(await _leader(on))

    await until_so(is_so)
    return await _leader(on)


async def _longest_wait_s(on: Ground, event: Callable[[], Awaitable[None]]) -> tuple[float, int]:
    """(longest wait for a first token, failed requests) around an event."""
    sent: list[Underway] = []
    happening: asyncio.Task[None] | None = None
    end_s = time.perf_counter() + _WINDOW_S
    while time.perf_counter() < end_s:
        sent.append(on.caller.send(on.request(prompt_tokens=_PROMPT, max_tokens=_TOKENS)))
        if happening is None and time.perf_counter() > end_s - _WINDOW_S + 0.5:
            happening = asyncio.create_task(_run(event))
        await asyncio.sleep(_EVERY_S)
    if happening is not None:
        await happening
    await ends(sent, _LIMIT_S)
    streams = [underway.stream for underway in sent]
    return max(s.ttft_s for s in streams if s.arrivals_s), sum(s.has_failed for s in streams)


async def _run(event: Callable[[], Awaitable[None]]) -> None:
    await event()


async def _nothing() -> None:
    pass


async def _round(on: Ground) -> dict[str, tuple[float, int]]:
    stack = on.stack
    owner = await _until_leader(on, lambda leader: leader != "")

    async def leave() -> None:
        stack.processes[owner].signal(signal.SIGTERM)

    found = {"nothing": await _longest_wait_s(on, _nothing), "it leaves": await _longest_wait_s(on, leave)}
    await _until_leader(on, lambda leader: leader not in ("", owner))
    found["it comes back"] = await _longest_wait_s(on, lambda: stack.restart(owner))
    await _until_leader(on, lambda leader: leader == owner)
    found["it is killed"] = await _longest_wait_s(on, lambda: stack.kill(owner))
    await stack.restart(owner)
    await _until_leader(on, lambda leader: leader == owner)
    return found


async def _measure(rounds: int) -> list[dict[str, tuple[float, int]]]:
    options = StackOptions(null_workers=4, schedulers=2, partitions=_PARTITIONS, slots=8, restarts=False)
    async with ground(options) as on:
        return [await _round(on) for _ in range(rounds)]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=positive, default=3)
    add_json(parser)
    options: Any = parser.parse_args()
    rounds = uvloop.run(_measure(options.rounds))
    table = Table("the scheduler that leads", "longest wait s, median of rounds", "of each", "failed")
    for event in _EVENTS:
        waits = [found[event][0] for found in rounds]
        each = ", ".join(f"{wait:.2f}" for wait in waits)
        table.add_row(event, f"{median(waits):.2f}", each, str(sum(found[event][1] for found in rounds)))
    Console().print(table)
    write_json(options, rounds)


if __name__ == "__main__":
    main()
