"""The keys of issuers, asked for over HTTP: again and again, and where a token names one that is new."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from inferflux.common.contract.errors import Unavailable
from inferflux.common.http.http_client import HttpClient
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background

from .issuer import Issuer
from .key_cache import KeyCache, KeyTimes
from .key_set import KeySet, VerifyingKey, parse_key_set

MAX_DOCUMENT_BYTES = 512 << 10
# Calls wait for an issuer in the first second after it was asked, and no longer: at gateways, they keep their
# places from other calls.
_WAIT_S = 1.0

log = logs.get()


async def ask_for_keys(http: HttpClient, issuer: Issuer) -> KeySet:
    """The issuer's keys as they are now.

    Raises:
        Unavailable: it does not answer, or not with keys.
    """
    url = issuer.jwks_url or await _keys_url(http, issuer)
    try:
        return parse_key_set(await _document(http, url))
    except ValueError as error:
        raise Unavailable(f"no keys: {error}", reason="ISSUER_UNAVAILABLE") from None


async def _keys_url(http: HttpClient, issuer: Issuer) -> str:
    if issuer.keys_at == "well-known":
        return issuer.well_known("jwks.json")
    said = await _document(http, issuer.well_known("openid-configuration"))
    url = said.get("jwks_uri") if isinstance(said, dict) else None
    # A document of another issuer would have its keys taken for this one's.
    if not isinstance(url, str) or said.get("issuer") != issuer.issuer:
        message = "its discovery document is not of this issuer, or names no keys"
        raise Unavailable(message, reason="ISSUER_UNAVAILABLE")
    return url


async def _document(http: HttpClient, url: str) -> Any:
    answer = await http.get(url, max_body_bytes=MAX_DOCUMENT_BYTES)
    if answer.status != 200:
        raise Unavailable(f"it answers with status {answer.status}", reason="ISSUER_UNAVAILABLE")
    try:
        return answer.json()
    except ValueError:
        raise Unavailable("its answer is not JSON", reason="ISSUER_UNAVAILABLE") from None


class IssuerKeys:
    """The keys of one issuer.

    Args:
        clock: monotonic seconds.
    """

    def __init__(
        self,
        issuer: Issuer,
        http: HttpClient,
        times: KeyTimes,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.issuer = issuer
        self._http = http
        self._cache = KeyCache(times)
        self._clock = clock
        self._background = Background()
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = 0.0
        self._was_away = False

    async def find(self, kid: str, algorithm: str) -> VerifyingKey | None:
        """The issuer's key; None if it has none of this id and algorithm.

        Raises:
            Unavailable: the issuer does not answer, and none of its keys are known or it may have a new one.
        """
        key = self._cache.find(kid, algorithm, self._clock())
        may_ask = self._is_asking() or self._cache.may_ask(self._clock())
        if key is None and may_ask:
            asking = self._ask_once()
            await asyncio.wait([asking], timeout=max(0.0, self._asked_s + _WAIT_S - self._clock()))
            key = self._cache.find(kid, algorithm, self._clock())
        if key is None and (self._is_asking() or not self._cache.has_keys(self._clock())):
            message = "the issuer of this token does not answer"
            raise Unavailable(message, reason="ISSUER_UNAVAILABLE")
        return key

    async def refresh(self) -> None:
        """Ask the issuer, once for all that wait. The keys of before stay where it does not answer."""
        await asyncio.wait([self._ask_once()])

    async def close(self) -> None:
        await self._background.close()

    def _ask_once(self) -> asyncio.Task[None]:
        """The question that is open, or a new one. A caller that leaves does not end it for the others."""
        if self._asking is None or self._asking.done():
            self._asked_s = self._clock()
            self._asking = self._background.start(self._ask())
        return self._asking

    def _is_asking(self) -> bool:
        return self._asking is not None and not self._asking.done()

    async def _ask(self) -> None:
        self._cache.asked(self._asked_s)
        try:
            keys = await ask_for_keys(self._http, self.issuer)
        except Unavailable as error:
            if not self._was_away:
                log.warning("an issuer does not answer", issuer=self.issuer.issuer, why=error.message)
            self._was_away = True
            return
        self._cache.got(keys, self._clock())
        if self._was_away:
            log.info("an issuer answers again", issuer=self.issuer.issuer)
        self._was_away = False
