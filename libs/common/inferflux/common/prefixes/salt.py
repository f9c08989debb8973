"""The secret that keys the hashes of prefixes, one for all who share a Redis."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from redis.asyncio import Redis

SALT_BYTES = 32

_KEY = "inferflux:{prefixes}:salt"

# KEYS: the salt. ARGV: one to write where there is none that can be one. Returns what counts.
_AGREE = """
local salt = redis.pcall('GET', KEYS[1])
if type(salt) == 'string' and #salt == #ARGV[1] then return salt end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
"""


class SharedSalt:
    """32 bytes from the system's random source. The first process that finds none in Redis writes its own.

    A Redis that lost its data gets back the salt that the others already use. Should a new process be faster,
    all others take its salt over, and what was hashed before does not match any more.
    """

    def __init__(self, redis: Redis) -> None:
        self._agree = redis.register_script(_AGREE)
        self.value = secrets.token_bytes(SALT_BYTES)

    async def refresh(self) -> bool:
        """Agree with the others. Returns whether the salt has changed.

        Raises:
            RedisError: Redis does not answer.
        """
        agreed = cast("bytes", await self._agree([_KEY], [self.value]))
        has_changed = agreed != self.value
        self.value = agreed
        return has_changed
