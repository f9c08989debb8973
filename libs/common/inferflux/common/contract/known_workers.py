"""Limit of the workers that a service keeps, which bounds the memory of invented ones. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from .errors import InvalidArgument

MAX_WORKERS = 4096
# One that was silent for this long makes room for a new one, if there is no other.
SILENT_S = 10.0


class KnownWorkers:
    """The workers whose heartbeats are taken in. Those that send heartbeats are never displaced.

    Args:
        on_displaced: told of the id of one that made room.
    """

    def __init__(
        self, on_displaced: Callable[[str], None] = lambda _: None, *, most: int = MAX_WORKERS
    ) -> None:
        self._on_displaced = on_displaced
        self._most = most
        # When the last heartbeat of each came, in seconds; the longest silent comes first.
        self._last_seen_s: OrderedDict[str, float] = OrderedDict()

    def admit(self, worker_id: str, now: float) -> None:
        """Take note of a heartbeat.

        Raises:
            InvalidArgument: the worker is new, and there are as many as are kept.
        """
        if worker_id not in self._last_seen_s and len(self._last_seen_s) >= self._most:
            self._make_room(now)
        self._last_seen_s[worker_id] = now
        self._last_seen_s.move_to_end(worker_id)

    def _make_room(self, now: float) -> None:
        longest_silent, seen_s = next(iter(self._last_seen_s.items()))
        if now - seen_s < SILENT_S:
            raise InvalidArgument(f"{self._most} workers are known; no more are taken", field="worker_id")
        del self._last_seen_s[longest_silent]
        self._on_displaced(longest_silent)
