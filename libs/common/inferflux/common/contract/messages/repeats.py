"""Messages that say again what they said before are neither decoded nor checked again. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from inferflux.common.contract.known_workers import MAX_WORKERS

_Message = TypeVar("_Message")

# Longer ones are parsed each time: kept, they would take too much memory.
_MOST_BYTES = 16 << 10


class Repeats(Generic[_Message]):
    """The last message of each subject, and what it was parsed to.

    An idle worker's heartbeat is the same every second. A message of the same bytes gives the same object as
    before, so a receiver can tell that nothing has changed. What is wrong is not kept, and refused each time.

    Args:
        parse: decodes and checks what came on a subject.
        most: subjects; the one that was silent for the longest time is forgotten for a new one.
    """

    def __init__(self, parse: Callable[[bytes, str], _Message], *, most: int = MAX_WORKERS) -> None:
        self._parse = parse
        self._most = most
        self._last: OrderedDict[str, tuple[bytes, _Message]] = OrderedDict()

    def parse(self, data: bytes, subject: str) -> _Message:
        """The message; raises what its parser raises."""
        last = self._last.get(subject)
        if last is not None and last[0] == data:
            self._last.move_to_end(subject)
            return last[1]
        message = self._parse(data, subject)
        if len(data) > _MOST_BYTES:
            self._last.pop(subject, None)
            return message
        self._last[subject] = (data, message)
        self._last.move_to_end(subject)
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        return message
