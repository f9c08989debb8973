"""When an issuer's keys are asked for, and for how long those of before hold. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from .key_set import KeySet, VerifyingKey


@dataclass(frozen=True, slots=True)
class KeyTimes:
    """In seconds.

    Attributes:
        refresh_s: keys are asked for again after this long.
        stale_s: keys of before hold for this long while the issuer is away.
        retry_s: between two questions that a token was the cause of: a key that is not there is not asked for
            again and again. A new key is waited for no longer than this.
    """

    refresh_s: float = 300.0
    stale_s: float = 86_400.0
    retry_s: float = 10.0


class KeyCache:
    """The keys of one issuer. Times are monotonic seconds."""

    def __init__(self, times: KeyTimes) -> None:
        self._times = times
        self._keys = KeySet()
        self._got_s: float | None = None
        self._asked_s: float | None = None

    def has_keys(self, now_s: float) -> bool:
        """True if the issuer has answered, and lately enough for its keys to hold."""
        return self._got_s is not None and now_s - self._got_s < self._times.stale_s

    def find(self, kid: str, algorithm: str, now_s: float) -> VerifyingKey | None:
        return self._keys.find(kid, algorithm) if self.has_keys(now_s) else None

    def may_ask(self, now_s: float) -> bool:
        """True if a token may be the cause of a question; sooner where there are no keys at all."""
        if self._asked_s is None:
            return True
        wait_s = self._times.retry_s if self.has_keys(now_s) else min(1.0, self._times.retry_s)
        return now_s - self._asked_s >= wait_s

    def asked(self, now_s: float) -> None:
        self._asked_s = now_s

    def got(self, keys: KeySet, now_s: float) -> None:
        """The issuer has these keys and no others."""
        self._keys, self._got_s = keys, now_s
