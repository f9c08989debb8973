"""Tasks with an owner: held while they run, and ended with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from . import logs, metrics

# uvloop counts in milliseconds: its timers may end half of one early.
_EARLY_S = 0.001

_R = TypeVar("_R")

# Parsing a larger JSON text takes milliseconds, in several steps.
LARGE_BYTES = 256 << 10
# Of schemas, which are read word by word.
LARGE_SCHEMA = 4 << 10

log = logs.get()


class Background:
    """Holds tasks so that they are neither lost nor left behind.

    An exception out of one is logged and counted.

    Args:
        on_failure: given such an exception, to act on it.
    """

    def __init__(self, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_failure = on_failure

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def finish(self, limit_s: float | None) -> None:
        """Wait for the tasks; cancel those not done in `limit_s` seconds. None: wait for all of it."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=limit_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    async def close(self) -> None:
        """Cancel the tasks, and return when they have ended."""
        await cancel_all(list(self._tasks))

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            metrics.UNEXPECTED_ERRORS.labels(where="background").inc()
            log.error("background work failed", exc_info=error)
            if self._on_failure is not None:
                self._on_failure(error)


async def is_set_within(event: asyncio.Event, limit_s: float) -> bool:
    """Wait for an event, for at most `limit_s` seconds; return whether it is set."""
    # Not `wait_for`: before Python 3.12 it loses a cancellation that comes as the event is set.
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
    return event.is_set()


async def until_next(interval_s: float) -> None:
    """Sleep until the next whole multiple of an interval, by the clock of the event loop.

    All that reports at the same interval does so at the same moment: the messages leave in one write, and
    come in one read.
    """
    await asyncio.sleep(next_in_s(asyncio.get_running_loop().time(), interval_s))


def next_in_s(now_s: float, interval_s: float) -> float:
    """Seconds to the next multiple of an interval; one that a timer ended early for counts as past."""
    left_s = interval_s - now_s % interval_s
    return left_s if left_s > _EARLY_S else left_s + interval_s


async def cancel_all(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks and return when all have ended, however they did."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def off_loop_if_large(n_bytes: int, work: Callable[[], _R], *, above: int = LARGE_BYTES) -> _R:
    """Do pure work on a text. A thread does it for a large one: the loop serves other calls between steps.

    Args:
        above: how many bytes are not large yet.
    """
    return await asyncio.to_thread(work) if n_bytes > above else work()
