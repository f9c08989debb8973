"""Questions to an engine whose answers come among its reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from inferflux.common.contract.errors import Unavailable
from inferflux.v1 import engine_pb2, scheduler_pb2

# An engine answers between two steps.
ANSWER_LIMIT_S = 4.0


class CacheClearing:
    """Has an engine clear its cache, and waits for what that freed.

    Args:
        send: passes a command to the engine.
    """

    def __init__(self, send: Callable[[engine_pb2.EngineCommand], None]) -> None:
        self._send = send
        self._ids = count(1)
        self._asked: dict[int, asyncio.Future[scheduler_pb2.CacheCleared]] = {}

    async def clear(self, clear: scheduler_pb2.ClearCache) -> scheduler_pb2.CacheCleared:
        """Clear the cache; return what the engine gave up.

        Raises:
            Unavailable: the engine died, or did not answer in time; then it may clear its cache all the same.
        """
        number = next(self._ids)
        answer: asyncio.Future[scheduler_pb2.CacheCleared] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        command = engine_pb2.EngineClearCache(id=number, clear=clear)
        self._send(engine_pb2.EngineCommand(clear_cache=command))
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                return await answer
        except TimeoutError:
            message = f"the engine did not answer in {ANSWER_LIMIT_S:g} s; it may act all the same"
            raise Unavailable(message, reason="OUTCOME_UNKNOWN") from None
        finally:
            del self._asked[number]

    def on_cleared(self, report: engine_pb2.EngineCacheCleared) -> None:
        """The engine has answered; nothing if no caller waits for it any more."""
        answer = self._asked.get(report.id)
        if answer is not None and not answer.done():
            answer.set_result(report.cleared)

    def on_engine_death(self) -> None:
        """No answer will come."""
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(Unavailable("the engine died", reason="ENGINE_DIED"))
