"""Workers whose heartbeats a standby receives: the next leader waits for them (pure)."""

from __future__ import annotations

from inferflux.common.contract.known_workers import MAX_WORKERS, SILENT_S
from inferflux.v1 import scheduler_pb2


class LiveWorkers:
    """Workers that sent a heartbeat, and when the last came, in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float]] = {}

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus, now: float) -> None:
        if status.worker_id not in self._seen and len(self._seen) >= MAX_WORKERS:
            self.live(now, SILENT_S)
        self._seen[status.worker_id] = status.incarnation, now

    def on_left(self, worker_id: str, incarnation: str) -> None:
        if self._seen.get(worker_id, ("", 0.0))[0] == incarnation:
            del self._seen[worker_id]

    def live(self, now: float, dead_after_s: float) -> set[str]:
        """Return the workers whose last heartbeat is less than `dead_after_s` seconds old; the others are
        forgotten."""
        self._seen = {w: seen for w, seen in self._seen.items() if now - seen[1] < dead_after_s}
        return set(self._seen)
