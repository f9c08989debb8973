"""Age of a stream's message by its server's clock, whatever the clock of this host says."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from inferflux.common.contract.errors import InferFluxError
from inferflux.common.process import logs

from .link import ApiError, Link

log = logs.get()

# An age below this is believed; another one is asked about, once a second at most.
_BELIEVED_S = 1.0
_ASK_AGAIN_S = 1.0
_ANSWER_S = 1.0


class ServerClock:
    """Compares two times of one clock: that of the server that leads the stream and stamps its messages.

    What that clock says now is asked once, and again when an age looks odd: another server may lead since,
    with another clock. In between, time passes by this process's monotonic clock.
    """

    def __init__(self, link: Link, stream: str) -> None:
        self._link = link
        self._stream = stream
        # The server's Unix time less our monotonic one, once it is known.
        self._ahead_s: float | None = None
        self._asked_s = -_ASK_AGAIN_S

    async def age_s(self, stored_unix_s: float) -> float:
        """Seconds since a message was stored, never negative; 0 while the server does not tell its time.

        Args:
            stored_unix_s: as the server stamped it.
        """
        age_s = self._age_s(stored_unix_s)
        if age_s is None or not 0 <= age_s < _BELIEVED_S:
            await self._ask()
            age_s = self._age_s(stored_unix_s)
        return max(age_s or 0.0, 0.0)

    def _age_s(self, stored_unix_s: float) -> float | None:
        return None if self._ahead_s is None else time.monotonic() + self._ahead_s - stored_unix_s

    async def _ask(self) -> None:
        if time.monotonic() - self._asked_s < _ASK_AGAIN_S:
            return
        self._asked_s = time.monotonic()
        try:
            async with asyncio.timeout(_ANSWER_S):
                self.note(await self._link.api(f"STREAM.INFO.{self._stream}"))
        except (ApiError, InferFluxError, TimeoutError) as error:
            log.debug("the server does not tell its time", stream=self._stream, error=str(error))

    def note(self, info: Mapping[str, Any]) -> None:
        """Take the time out of an answer to STREAM.INFO that has just come."""
        with contextlib.suppress(KeyError, ValueError):
            # Rather too young than too old by what the answer took: nothing ends too soon.
            self._ahead_s = datetime.fromisoformat(info["ts"]).timestamp() - time.monotonic()
