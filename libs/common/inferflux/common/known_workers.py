"""How many workers a service keeps: heartbeats of invented ones take no more than that. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from inferflux.common.errors import InvalidArgument

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
        # When each was heard last, in seconds; who is silent longest comes first.
        self._heard: OrderedDict[str, float] = OrderedDict()

    def admit(self, worker_id: str, now: float) -> None:
        """Take note of a heartbeat.

        Raises:
            InvalidArgument: the worker is new, and there are as many as are kept.
        """
        if worker_id not in self._heard and len(self._heard) >= self._most:
            self._make_room(now)
        self._heard[worker_id] = now
        self._heard.move_to_end(worker_id)

    def _make_room(self, now: float) -> None:
        longest_silent, heard = next(iter(self._heard.items()))
        if now - heard < SILENT_S:
            raise InvalidArgument(f"{self._most} workers are known; no more are taken", field="worker_id")
        del self._heard[longest_silent]
        self._on_displaced(longest_silent)
