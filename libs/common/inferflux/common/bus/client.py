"""Interface of a connection of the bus; `NatsClient` and `MemoryClient` implement it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

# subject, reply, data, headers: bytes as they came; headers are None when there are none.
OnMessage = Callable[[bytes, bytes, bytes, "bytes | None"], None]

# Messages for a client that is away, and bytes that a stalled connection has not taken yet.
OUTBOUND_LIMIT_BYTES = 2 << 20


class OutboundFullError(Exception):
    """The outbound buffer is full."""


class TooLargeError(Exception):
    """The message is larger than the server takes."""


class Client(Protocol):
    """One connection that is made again for ever."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_clustered(self) -> bool:
        """True if the server said that it is one of a cluster."""

    @property
    def max_payload(self) -> Any:
        """Bytes a message may have."""

    @property
    def pending_data_size(self) -> Any:
        """Bytes in the outbound buffer."""

    def send(
        self, subject: str, payload: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Append a message to the outbound buffer, also while the connection is being made again.

        Raises:
            OutboundFullError: the buffer holds its limit already.
            TooLargeError: the message is larger than the server takes.
            ValueError: the subject or a header cannot be written.
        """

    def tap(self, subject: str, on_message: OnMessage, queue: str = "") -> int:
        """Subscribe; returns the id to `untap` it with. Kept over reconnects."""

    def untap(self, sid: int) -> None: ...

    def when_written(self, done: asyncio.Future[bool]) -> asyncio.Future[bool]:
        """Resolve `done` when the connection has taken all bytes that are buffered now."""

    def discard_outbound(self) -> None:
        """Forget what was not sent, and break the connection: for closing one that does not take it."""

    def discard_unsent(self, prefix: str) -> None:
        """Forget the messages without headers that still wait, to subjects that begin with `prefix`."""

    async def flush(self, timeout: Any = ...) -> None:
        """Return when the server has taken in everything sent before."""

    async def close(self) -> None: ...
