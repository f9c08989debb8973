"""Which workers a standby has heard of, for the moment it leads (pure)."""

from __future__ import annotations

from inferflux.common.known_workers import MAX_WORKERS, SILENT_S
from inferflux.v1 import scheduler_pb2


class Roster:
    """The workers whose heartbeats were heard, and when last, in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[str, float]] = {}

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus, now: float) -> None:
        if status.worker_id not in self._heard and len(self._heard) >= MAX_WORKERS:
            self.live(now, SILENT_S)
        self._heard[status.worker_id] = status.incarnation, now

    def on_left(self, worker_id: str, incarnation: str) -> None:
        if self._heard.get(worker_id, ("", 0.0))[0] == incarnation:
            del self._heard[worker_id]

    def live(self, now: float, dead_after_s: float) -> set[str]:
        """Those heard less than `dead_after_s` seconds ago; the others are forgotten."""
        self._heard = {w: heard for w, heard in self._heard.items() if now - heard[1] < dead_after_s}
        return set(self._heard)
