"""Work that outlives the RPC it came from."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from inferflux.common import logs, metrics

log = logs.get()


class Background:
    """Tasks that nobody awaits, held so that they are neither lost nor left behind."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def finish(self, limit_s: float) -> None:
        """Wait for what runs; cancel what is not done in `limit_s` seconds."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=limit_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            metrics.UNEXPECTED_ERRORS.labels(where="background").inc()
            log.error("background work failed", exc_info=error)
