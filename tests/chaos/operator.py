"""What an operator may do to requests that run: have them go on on other workers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable

from inferflux.cli.reach.client import Client
from inferflux.cli.reach.target import Target
from inferflux.common.contract.errors import InferFluxError

_POLL_S = 0.2


class Operator:
    """Moves requests, and drains workers. What is refused is no fault: it is a race with other faults.

    Attributes:
        moved: requests that went on where they were sent.
        refused: why the others did not: they stayed, or ended.
    """

    def __init__(self, target: Callable[[], Target]) -> None:
        self._target = target
        self.moved = 0
        self.refused: Counter[str] = Counter()

    async def move(self, rng: random.Random, lasts_s: float) -> None:
        """For that time, send random requests to random workers."""
        until_s = time.monotonic() + lasts_s
        moves: list[asyncio.Task[None]] = []
        async with Client(self._target()) as client:
            try:
                while time.monotonic() < until_s:
                    if chosen := await self._choose(client, rng):
                        moves.append(asyncio.create_task(self._move(client, *chosen)))
                    await asyncio.sleep(_POLL_S)
                await asyncio.gather(*moves)
            finally:
                for move in moves:
                    move.cancel()

    async def _choose(self, client: Client, rng: random.Random) -> tuple[str, str] | None:
        """(a request that runs, another worker)"""
        with contextlib.suppress(InferFluxError):
            views = (await client.status()).scheduler.workers
            running = [
                (slot.request_id, view.status.worker_id)
                for view in views
                for slot in view.slots
                if slot.request_id
            ]
            if running and len(views) > 1:
                request_id, worker_id = rng.choice(running)
                others = [view.status.worker_id for view in views if view.status.worker_id != worker_id]
                return request_id, rng.choice(others)
        return None

    async def _move(self, client: Client, request_id: str, worker_id: str) -> None:
        try:
            await client.move("", request_id, worker_id)
            self.moved += 1
        except InferFluxError as error:
            self.refused[error.message.replace(request_id, "R")] += 1

    async def drain(self, worker_id: str, lasts_s: float) -> None:
        """For that time, have a worker take nothing, and what it has go on elsewhere at once."""
        async with Client(self._target()) as client:
            with contextlib.suppress(InferFluxError, TimeoutError):
                async with asyncio.timeout(lasts_s):
                    async for _ in client.drain(worker_id, hand_over_after_ms=0):
                        pass
                    await asyncio.sleep(lasts_s)

    async def undrain(self, worker_id: str, limit_s: float) -> str:
        """Have it take requests again; returns why that failed, until time was up."""
        why = ""
        with contextlib.suppress(TimeoutError):
            async with Client(self._target()) as client, asyncio.timeout(limit_s):
                while True:
                    try:
                        await client.undrain(worker_id)
                    except InferFluxError as error:
                        why = error.message
                        await asyncio.sleep(_POLL_S)
                    else:
                        return ""
        return why or "no answer"
