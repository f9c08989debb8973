"""An answer from the cache as a stream of chunks, for the relay here and for readers elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from inferflux.common.contract.errors import Unavailable

# Between two attempts to publish a chunk that NATS does not take.
_RETRY_S = 0.2


class Publishes(Protocol):
    """NATS; `inferflux.gateway.stream.token_streams.TokenStreams` is it."""

    async def publish(self, subject: str, data: bytes, /) -> None: ...


class StoredChunks:
    """A token source for a relay that has all its messages, the terminal one included."""

    dropped = False

    def __init__(self, messages: Iterable[bytes]) -> None:
        self._messages = deque(messages)

    async def next(self, timeout_s: float) -> bytes:
        """The next message.

        Raises:
            TimeoutError: there is none, and none will come.
        """
        if not self._messages:
            await asyncio.sleep(timeout_s)
            raise TimeoutError
        return self._messages.popleft()

    def next_nowait(self) -> bytes | None:
        return self._messages.popleft() if self._messages else None


async def publish(bus: Publishes, subject: str, messages: Iterable[bytes], *, window_s: int) -> None:
    """Publish an answer as its worker did, and go on trying for as long as its client may resume it."""
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
