"""The first admin key: without one no other could be made."""

from __future__ import annotations

import time
from collections.abc import Callable

from inferflux.common import logs

from . import keys
from .key_store import KeyStore
from .keys import ALL_SCOPES, ApiKeyRecord

GENERATED = "generated"
"""The mark of a key that was not given."""

TENANT = "default"
NAME = "bootstrap"

log = logs.get()


class Bootstrap:
    """Sees to it that a fresh store has an admin key: the one given, or a generated one if none is.

    A store remembers what was written to it this way, so a key that was revoked is not written again,
    whereas a store that lost its data gets its key back. Any number of processes may try at once.
    """

    def __init__(self, store: KeyStore, secret: str, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._secret = secret
        self._clock = clock
        self._mark = keys.digest_of(secret) if secret else GENERATED

    async def ensure(self) -> None:
        """Write the key if this store never had it. Raises Unavailable while the store does not answer."""
        if await self._store.is_bootstrapped(self._mark):
            return
        secret = self._secret or keys.generate()
        record = ApiKeyRecord(
            digest=keys.digest_of(secret),
            tenant=TENANT,
            name=NAME,
            scopes=ALL_SCOPES,
            created_unix_ms=int(self._clock() * 1000),
        )
        is_new = await self._store.bootstrap(record, mark=self._mark, only_if_empty=not self._secret)
        if is_new and self._secret:
            log.info("the bootstrap admin key was written", key_id=record.key_id, tenant=TENANT)
        elif is_new:
            log.warning(
                "the store was empty: this admin key was made and is shown this once",
                api_key=secret,
                key_id=record.key_id,
                tenant=TENANT,
            )
