"""Stores that NATS keeps: the bucket of the leases, and the work queue of each partition."""

from __future__ import annotations

from .history import Ask


class Bucket:
    """Keys and values that are written only over the revision that the writer knows."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[bytes, int]] = {}
        self._revision = 0

    def get(self, key: str) -> tuple[bytes | None, int]:
        """The value and its revision: None and 0 where there is none."""
        return self._entries.get(key, (None, 0))

    def write(self, key: str, value: bytes, over: int) -> int | None:
        """The new revision; None when the key holds another than `over`."""
        if self.get(key)[1] != over:
            return None
        self._revision += 1
        self._entries[key] = value, self._revision
        return self._revision


class WorkQueue:
    """The jobs of one partition that are not acknowledged, oldest first."""

    def __init__(self) -> None:
        self._jobs: dict[int, Ask] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def publish(self, ask: Ask) -> None:
        self._count += 1
        ask.sequence = self._count
        self._jobs[self._count] = ask

    def acknowledge(self, ask: Ask) -> None:
        """A second acknowledgement changes nothing."""
        if self._jobs.pop(ask.sequence, None) is not None:
            ask.acks += 1

    def all(self) -> list[Ask]:
        return list(self._jobs.values())
