"""The first admin key: without one no other could be made."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from inferflux.common.process import logs
from inferflux.common.process.private_files import write_private

from .decide import keys
from .decide.key_store import KeyStore
from .decide.keys import ALL_SCOPES, ApiKeyRecord

GENERATED = "generated"
"""The mark of a key that was not given."""

TENANT = "default"
NAME = "bootstrap"

log = logs.get()


class Bootstrap:
    """Sees to it that a fresh store has an admin key: the one given, or a generated one if none is.

    A store remembers what was written to it this way, so a key that was revoked is not written again,
    whereas a store that lost its data gets its key back. Any number of processes may try at once.

    Args:
        secret: the key; "" for one that is generated.
        path: where a generated key is written; None: it is shown on stderr.
    """

    def __init__(
        self,
        store: KeyStore,
        secret: str,
        *,
        path: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._secret = secret
        self._path = path
        self._clock = clock
        self._mark = keys.digest_of(secret) if secret else GENERATED
        # Of a key that may have been written: the store has not told.
        self._tried = ""

    async def ensure(self) -> None:
        """Write the key if this store never had it. Raises Unavailable while the store does not answer."""
        if not self._tried and await self._store.is_bootstrapped(self._mark):
            return
        was_tried, secret = bool(self._tried), self._tried or self._secret or keys.generate()
        record = ApiKeyRecord(
            digest=keys.digest_of(secret),
            tenant=TENANT,
            name=NAME,
            scopes=ALL_SCOPES,
            created_unix_ms=int(self._clock() * 1000),
        )
        self._tried = secret
        is_new = await self._store.bootstrap(record, mark=self._mark, only_if_empty=not self._secret)
        is_new = is_new or (was_tried and await self._store.find(record.digest) is not None)
        self._tried = ""
        if is_new and self._secret:
            log.info("the bootstrap admin key was written", key_id=record.key_id, tenant=TENANT)
        elif is_new:
            where = _hand_over(secret, self._path)
            log.warning(
                "the store was empty: an admin key was made", key_id=record.key_id, tenant=TENANT, where=where
            )


def _hand_over(secret: str, path: Path | None) -> str:
    """Give a generated key to those who run policy, in a file or on stderr; returns where. No log has it."""
    if path is not None:
        try:
            write_private(path, secret + "\n")
        except OSError as error:  # nothing but this can say it again
            log.error(
                "the first key cannot be written: it is shown on stderr", path=str(path), why=str(error)
            )
        else:
            return str(path)
    sys.stderr.write(f"The first admin key, shown this once: {secret}\n")
    sys.stderr.flush()
    return "stderr"
