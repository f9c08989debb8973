"""When keys were last used: remembered here for a while, then written in one go, off the way of any call."""

from __future__ import annotations

import time
from collections.abc import Callable

from inferflux.common.contract.errors import Unavailable
from inferflux.common.process import logs

from .decide.key_store import KeyStore

log = logs.get()

# As exact as it is written.
EVERY_S = 60.0
# More keys than this are not remembered between two writings: what was used last stays unknown for the rest.
_MOST = 100_000


class LastUsed:
    """Notes which keys are used."""

    def __init__(self, store: KeyStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        # Key ids that were written lately, and when; and those that are to be written.
        self._written: dict[str, float] = {}
        self._noted: dict[str, int] = {}

    def note(self, key_id: str) -> None:
        """The key was used now."""
        now = self._clock()
        if now - self._written.get(key_id, 0.0) >= EVERY_S and len(self._noted) < _MOST:
            self._noted[key_id] = int(now * 1000)

    async def write(self) -> None:
        """Write what was noted. Where the store is away, it is tried again with the next call."""
        noted, self._noted = self._noted, {}
        if not noted:
            return
        try:
            await self._store.note_used(noted)
        except Unavailable as error:
            self._noted = noted | self._noted
            log.debug("the last use of keys was not written", why=error.in_full)
            return
        now = self._clock()
        self._written = {key: at for key, at in self._written.items() if now - at < EVERY_S}
        self._written |= dict.fromkeys(noted, now)
