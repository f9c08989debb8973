"""State of a partition that is kept from leader to leader."""

from __future__ import annotations

import asyncio
from typing import Protocol

from inferflux.common.bus.key_value import KeyValueBucket
from inferflux.common.contract.errors import InferFluxError
from inferflux.common.process import logs

# A leader that is killed takes what was served since with it.
_INTERVAL_S = 1.0
_TIMEOUT_S = 0.5

log = logs.get("scheduler.kept")


class Kept(Protocol):
    """A part of the core that outlives leaders."""

    def encode(self) -> bytes: ...
    def restore(self, written: bytes) -> None: ...


class KeptStore:
    """One part of a partition's state, under a key of the bucket.

    Failures are logged: no request waits for it.
    """

    def __init__(self, bucket: KeyValueBucket, key: str, kept: Kept) -> None:
        self._bucket = bucket
        self._key = key
        self._kept = kept
        self._revision = 0
        self._written = b""
        self._is_loaded = False

    async def load(self) -> None:
        """Take over what the last leader wrote. Where that cannot be read, `keep` tries again."""
        try:
            entry = await self._bucket.get(self._key, timeout_s=_TIMEOUT_S)
        except InferFluxError as error:
            log.warning("what the last leader kept could not be read", key=self._key, reason=error.reason)
            return
        self._is_loaded = True
        if entry is not None:
            self._revision = entry.revision
            self._kept.restore(entry.value)

    async def keep(self) -> None:
        """Write the state if it has changed; not over what another leader has written since, nor over
        what has not been read."""
        if not self._is_loaded:
            await self.load()
            if not self._is_loaded:
                return
        value = self._kept.encode()
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
            log.warning("what the next leader needs could not be written", key=self._key, reason=error.reason)
            return
        if written is not None:
            self._revision, self._written = written, value
        elif entry is not None:
            self._revision = entry.revision

    async def keep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.keep()
