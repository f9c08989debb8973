"""Writes that a replica has confirmed: of what may not come back when the primary of Redis is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inferflux.common.contract.errors import Unavailable
from inferflux.common.redis.store import has_replicas
from inferflux.policy.storage.guarded import StoreGuard

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript

# Of the time that one answer of Redis may take.
_PART_OF_LIMIT = 0.6


class ReplicatedWrites:
    """Runs scripts that write. Where a replica may become the primary, one must have what was written."""

    def __init__(self, redis: Redis, guard: StoreGuard) -> None:
        self._redis = redis
        self._guard = guard

    async def run(self, script: AsyncScript, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Run a script, and return its result; nothing was written where that is 0.

        Raises:
            Unavailable: Redis did not answer, or no replica did (NOT_REPLICATED): then it was written.
        """
        async with self._guard.limit():
            if not await has_replicas(self._redis, keys[0]):
                return await script(list(keys), list(arguments))
            # WAIT is about what its own connection has written.
            pipeline = self._redis.pipeline(transaction=False)
            await script(list(keys), list(arguments), client=pipeline)
            pipeline.execute_command("WAIT", 1, round(1000 * _PART_OF_LIMIT * self._guard.timeout_s))
            result, n_replicas = await pipeline.execute()
        if result and not n_replicas:
            message = (
                "the change was made, but no replica of Redis has confirmed it: "
                "if the primary is lost now, it may be undone; look again later"
            )
            raise Unavailable(message, reason="NOT_REPLICATED", retry_delay_s=None)
        return result
