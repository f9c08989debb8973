"""Progress of a worker's draining that is worth telling, and its end (pure)."""

from __future__ import annotations

from inferflux.v1 import scheduler_pb2

# Without any change, said again this often, so that the client sees that the call is alive.
_REPEAT_S = 0.5
# Heartbeats are a second apart: one may say READY that the worker sent before it received the drain command.
_UNDONE_AFTER_S = 2.5


class DrainWatch:
    """Takes the scheduler's answers about one worker in, one after the other. Times are in seconds."""

    def __init__(self) -> None:
        self._said: scheduler_pb2.DrainProgress | None = None
        self._said_s = 0.0
        self._is_draining = False
        self._ready_since_s: float | None = None
        self.is_over = False

    def take(self, progress: scheduler_pb2.DrainProgress, now: float) -> bool:
        """Return whether this answer is to be passed on; the one that ends it always is.

        It is over when the worker may be stopped, or when it takes requests again: it was undone.
        """
        self.is_over = progress.is_drained or self._is_undone(progress, now)
        if not self.is_over and progress == self._said and now - self._said_s < _REPEAT_S:
            return False
        self._said, self._said_s = progress, now
        return True

    def _is_undone(self, progress: scheduler_pb2.DrainProgress, now: float) -> bool:
        if progress.state == scheduler_pb2.WORKER_STATE_DRAINING:
            self._is_draining = True
        if progress.state != scheduler_pb2.WORKER_STATE_READY or not self._is_draining:
            self._ready_since_s = None
            return False
        if self._ready_since_s is None:
            self._ready_since_s = now
        return now - self._ready_since_s >= _UNDONE_AFTER_S
