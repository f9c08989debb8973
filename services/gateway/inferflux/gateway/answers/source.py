"""An answer from the cache, where a relay expects a subscription."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable


class StoredChunks:
    """A token source that has all its messages, the terminal one included."""

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
