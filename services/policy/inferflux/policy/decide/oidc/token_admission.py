"""From a token to its holder: which issuer, which key, which claims."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from inferflux.common.contract.callers.credentials import could_be_token
from inferflux.common.contract.errors import Unauthenticated
from inferflux.common.http.http_client import HttpClient
from inferflux.common.process import logs
from inferflux.common.process.tasks import is_set_within
from inferflux.policy.metrics import PolicyMetrics

from . import tokens
from .claims import TokenHolder, holder_of
from .issuer import Issuer
from .issuer_keys import IssuerKeys
from .key_cache import KeyTimes
from .verified import Verified, VerifiedTokens

log = logs.get()


class TokenAdmission:
    """Knows the holders of tokens. Without issuers it takes no credential for a token.

    Args:
        clock: seconds since 1970.
    """

    def __init__(
        self,
        issuers: Sequence[Issuer],
        http: HttpClient,
        times: KeyTimes,
        metrics: PolicyMetrics,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = {issuer.issuer: IssuerKeys(issuer, http, times) for issuer in issuers}
        self._verified = VerifiedTokens()
        self._refresh_s = times.refresh_s
        self._metrics = metrics
        self._clock = clock

    def takes(self, credential: str) -> bool:
        return bool(self._keys) and could_be_token(credential)

    async def holder_of(self, credential: str) -> TokenHolder:
        """Raises:
        Unauthenticated: the token is not taken. Why is for logs and metrics alone.
        Unavailable: its issuer does not answer, and none of its keys are known.
        """
        try:
            return await self._holder_of(credential)
        except tokens.TokenRefused as refused:
            self._metrics.count_refused_token(refused.why)
            log.debug("a token is refused", why=refused.why)
            raise Unauthenticated("this token is not accepted", reason="INVALID_TOKEN") from None

    async def _holder_of(self, credential: str) -> TokenHolder:
        verified = self._verified.find(credential)
        token = tokens.read(credential) if verified is None else verified.token
        keys = self._keys.get(token.issuer)
        if keys is None:
            raise tokens.TokenRefused("issuer")
        if token.algorithm not in keys.issuer.algorithms:
            raise tokens.TokenRefused("algorithm")
        key = await keys.find(token.kid, token.algorithm)
        if key is None:
            raise tokens.TokenRefused("key")
        # A key that the issuer replaced or took back has signed nothing any longer.
        if verified is None or verified.key != key:
            verified = Verified(token, key, tokens.verify(credential, key))
            self._verified.add(credential, verified)
        return holder_of(verified.claims, keys.issuer, now_s=self._clock())

    async def run_until(self, ending: asyncio.Event) -> None:
        """Keep the keys fresh, whether tokens come or not."""
        while self._keys:
            await asyncio.gather(*(keys.refresh() for keys in self._keys.values()))
            if await is_set_within(ending, self._refresh_s):
                return

    async def close(self) -> None:
        for keys in self._keys.values():
            await keys.close()
