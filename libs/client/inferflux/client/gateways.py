"""The gateways of one client, and which of them is called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar


class Connected(Protocol):
    """A gateway with a channel to it."""

    @property
    def address(self) -> str: ...


_G = TypeVar("_G", bound=Connected)


class Gateways(Generic[_G]):
    """Calls go to one gateway until one of them fails: then to the next, the first one after the last.

    A channel is opened when its gateway is called first. Threads may share it.
    """

    def __init__(self, addresses: Sequence[str], connect: Callable[[str], _G]) -> None:
        self._addresses = addresses
        self._connect = connect
        self._opened: dict[str, _G] = {}
        self._index = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def current(self) -> _G:
        """The gateway to call."""
        with self._lock:
            return self._open(self._addresses[self._index])

    def every(self) -> list[_G]:
        """All of them, in the order of their addresses."""
        with self._lock:
            return [self._open(address) for address in self._addresses]

    def leave(self, gateway: _G) -> None:
        """Call another one from now on, unless another call has left this one already."""
        with self._lock:
            if self._addresses[self._index] == gateway.address:
                self._index = (self._index + 1) % len(self._addresses)

    def _open(self, address: str) -> _G:
        if address not in self._opened:
            self._opened[address] = self._connect(address)
        return self._opened[address]

    def take_all(self) -> list[_G]:
        """Remove and return the opened channels, to be closed."""
        with self._lock:
            opened = list(self._opened.values())
            self._opened = {}
            return opened
