"""What is seen of the fleet on NATS and in Redis, from the client's host."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import nats
import redis.asyncio
import redis.exceptions
from chaos import published
from google.protobuf.message import DecodeError
from harness.leaders import leader_of
from nats.aio.msg import Msg

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError
from inferflux.common.redis import store
from inferflux.common.servers import nats_users, redis_users
from inferflux.policy.storage.usage_store import UsageStore
from inferflux.v1 import worker_pb2

from .history import Dispatch, History
from .layout import REDIS, REDIS_PORT
from .machines import Fleet

_STORE_LIMIT_S = 3.0


class Watch:
    """Use as an async context manager."""

    def __init__(self, fleet: Fleet, tenant: str) -> None:
        self._fleet = fleet
        self._tenant = tenant
        self.expected: dict[str, list[int]] = {}
        self.published = published.Published(self.expected)
        self.history = History()

    async def __aenter__(self) -> Self:
        url = self._fleet.layout.nats_url(nats_users.OPERATOR)
        self.bus: Bus = await published.listen(url, self.published)
        # Not the batches themselves: a worker that is gone would seem to be there, as they have a reader.
        # Not by the bus, which takes the replies of JetStream there for damaged messages.
        self._answers = await nats.connect(url.split(","), max_reconnect_attempts=-1, error_cb=_ignore)
        await self._answers.subscribe(
            f"{subjects.inbox_prefix_of(nats_users.SCHEDULER)}.>", cb=self._on_answer
        )
        await self._answers.flush()
        self._redis = store.connect(self._fleet.layout.redis_url(redis_users.OPERATOR))
        self._usage = UsageStore(self._redis, timeout_s=_STORE_LIMIT_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._answers.close()
        await self.bus.close()
        await self._redis.aclose()

    def begin(self) -> History:
        """A history of what comes from now on."""
        self.history = History()
        return self.history

    async def leader(self) -> str:
        """Which scheduler leads; empty while none answers."""
        return await leader_of(self.bus, limit_s=2.0)

    async def primary(self) -> str:
        """The host of the primary of Redis, as the servers say it."""
        password = self._fleet.layout.secrets.passwords[redis_users.OPERATOR]
        for name in REDIS:
            host = self._fleet.network.hosts[name].address
            client = redis.asyncio.Redis(
                host=host,
                port=REDIS_PORT,
                username=redis_users.OPERATOR,
                password=password,
                socket_timeout=_STORE_LIMIT_S,
            )
            async with client:
                try:
                    state = await client.info("replication")
                except redis.exceptions.RedisError:
                    continue
                if state["role"] == "master" and (name == REDIS[1] or state["connected_slaves"]):
                    return name
        return REDIS[0]

    async def usage(self) -> dict[str, int] | None:
        """The tenant's counters; None while Redis cannot be asked."""
        try:
            return await self._usage.usage(self._tenant)
        except InferFluxError:
            return None

    async def _on_answer(self, message: Msg) -> None:
        """What a worker says to a scheduler of a batch; other answers are skipped."""
        try:
            answer = worker_pb2.BatchAccepted.FromString(message.data)
        except DecodeError:
            return
        term = answer.batch_id.partition("-")[0]
        if term.isdigit() and answer.accepted_request_ids:
            sender = message.subject.rpartition(".")[0]
            self.history.dispatches.append(Dispatch(time.monotonic(), int(term), sender))


async def _ignore(_: Exception) -> None:
    """A server that is gone is what a case is about."""
