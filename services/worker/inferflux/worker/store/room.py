"""Room of a store for more bytes (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from inferflux.common.contract.errors import ResourceExhausted

# What a disk keeps free for whatever else writes to it.
SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a store may still take.

    Attributes:
        quota: of all of it; 0: none.
        used: by what is in the store beside the files in question, parts of others with what they will take.
        free_disk: on its file system, now.
    """

    quota: int
    used: int
    free_disk: int

    def check(self, total: int, *, there: int = 0) -> None:
        """See that files of `total` bytes fit, of which `there` are on the disk already.

        Raises:
            ResourceExhausted: they do not; says both numbers.
        """
        if self.quota and self.used + total > self.quota:
            raise ResourceExhausted(
                f"the model has {total:,} bytes: the store has room for {max(self.quota - self.used, 0):,} "
                f"of INFERFLUX_MODELS_STORE_BYTES, {self.quota:,}",
                reason="STORE_QUOTA",
            )
        more = max(total - there, 0)
        left = max(self.free_disk - SPARE_BYTES, 0)
        if more > left:
            raise ResourceExhausted(
                f"the model needs {more:,} bytes more: the disk of the store has {left:,} to spare",
                reason="STORE_DISK_FULL",
            )
