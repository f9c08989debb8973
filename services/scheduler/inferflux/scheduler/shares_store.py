"""What tenants have been served, kept from leader to leader."""

from __future__ import annotations

import asyncio
from typing import Protocol

from inferflux.common import logs, subjects
from inferflux.common.errors import InferFluxError
from inferflux.common.partitions import Partition

from .admin import Entry
from .core.ledger import Ledger

# A leader that is killed takes what was served since with it.
_INTERVAL_S = 1.0
_TIMEOUT_S = 0.5

log = logs.get("scheduler.shares")


class Bucket(Protocol):
    """As `key_value.KeyValueBucket`."""

    async def get(self, key: str, *, timeout_s: float) -> Entry | None: ...
    async def update(self, key: str, value: bytes, *, revision: int, timeout_s: float) -> int | None: ...


class SharesStore:
    """One partition's counters, under a key of the bucket.

    Failures are logged: no request waits for shares.
    """

    def __init__(self, bucket: Bucket, partition: Partition) -> None:
        self._bucket = bucket
        self._key = subjects.tenant_shares(partition)
        self._revision = 0
        self._written = b""
        self._is_loaded = False

    async def load(self, ledger: Ledger) -> None:
        """Take over what the last leader wrote. Where that cannot be read, `keep` tries again."""
        try:
            entry = await self._bucket.get(self._key, timeout_s=_TIMEOUT_S)
        except InferFluxError as error:
            log.warning("the shares of tenants could not be read", reason=error.reason)
            return
        self._is_loaded = True
        if entry is not None:
            self._revision = entry.revision
            ledger.restore(entry.value)

    async def keep(self, ledger: Ledger) -> None:
        """Write the counters if they have changed; not over what another leader has written since, nor over
        what has not been read."""
        if not self._is_loaded:
            await self.load(ledger)
            if not self._is_loaded:
                return
        value = ledger.encode()
        if value == self._written:
            return
        try:
            written = await self._bucket.update(
                self._key, value, revision=self._revision, timeout_s=_TIMEOUT_S
            )
            # The last leader may have written as it left: the next time, that is written over.
            entry = None
            if written is None:
                entry = await self._bucket.get(self._key, timeout_s=_TIMEOUT_S)
        except InferFluxError as error:
            log.warning("the shares of tenants could not be written", reason=error.reason)
            return
        if written is not None:
            self._revision, self._written = written, value
        elif entry is not None:
            self._revision = entry.revision

    async def keep_for_ever(self, ledger: Ledger) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.keep(ledger)
