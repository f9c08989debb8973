"""Publishes the chunks of an answer from the cache, as a worker does those that it makes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Protocol

from inferflux.common.contract.errors import Unavailable

# Between two attempts to publish a chunk that NATS does not take.
_RETRY_S = 0.2


class Publishes(Protocol):
    """NATS; `inferflux.common.bus.Bus` is it."""

    async def publish(self, subject: str, data: bytes, /) -> None: ...


async def publish(bus: Publishes, subject: str, messages: Iterable[bytes], *, window_s: int) -> None:
    """Publish an answer, and go on trying for as long as its client may resume it."""
    give_up_s = time.monotonic() + window_s
    for message in messages:
        while not await _is_published(bus, subject, message):
            if time.monotonic() >= give_up_s:
                return
            await asyncio.sleep(_RETRY_S)


async def _is_published(bus: Publishes, subject: str, message: bytes) -> bool:
    try:
        await bus.publish(subject, message)
    except Unavailable:
        return False
    return True
