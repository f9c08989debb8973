"""grpc.aio's server with its own way of taking calls. What grpc's loop does (`_server_main_loop` in grpc's
server.pyx.pxi, 1.85) has two flaws:

- A call whose method is not UTF-8 ends the server. The method of every call that is to none of its methods is
  decoded in that loop, outside of any handler, and an error there shuts the server down. Calls to known
  methods never come that way: gRPC's core matches them by their bytes. So calls to unknown methods are
  answered here without a look at their method.
- It takes one call in a few rounds of the event loop, and looks at every method for it. A busy process has
  few rounds in a second, so calls wait for seconds in gRPC's core, where none can go ahead of another. Here
  several are taken in a round: what they wait for then knows who is urgent, and is bounded.

It also logs tracebacks for errors of clients. Here bad header bytes are counted and logged in one line, and a
client that left while it was answered is not logged.

The names and log texts used are private to grpc, whose version is pinned; tests make such calls.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server as aio_server
from grpc_health.v1 import health, health_pb2

from inferflux.common.process import logs, metrics

from .grpc_options import Option

log = logs.get()

_grpc: Any = cygrpc
_aio: Any = aio_server

_LOGGER = "grpc._cython.cygrpc"
_INVALID = "Invalid encoding"
# A client left in the moment its answer was sent.
_LEFT = "ExecuteBatchError raised in core"
# At most one line in this time.
_SAID_EVERY_S = 60.0


class _AioServer(_grpc.AioServer):  # type: ignore[misc]
    """grpc's loop awaits one future for each method, here one that only the end of the server resolves."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        arguments: object,
        most_at_once: int,
    ) -> None:
        super().__init__(loop, None, (), interceptors, arguments, None)
        self._used_interceptors = tuple(interceptors)
        self._handlers: dict[str, Any] = {}
        self._most_at_once = most_at_once
        self._is_stopping = False
        # Of each method: calls that are taken at a time, and those that have not come in this round.
        self._n_takers: Counter[bytes] = Counter()
        self._n_idle: Counter[bytes] = Counter()
        # Referenced, so that they are not collected.
        self._tasks: set[asyncio.Task[None]] = set()

    def add_registered_method_handlers(self, method_handlers: Mapping[str, Any]) -> None:
        super().add_registered_method_handlers(method_handlers)
        self._handlers |= method_handlers

    async def shutdown(self, grace: float | None) -> None:
        self._is_stopping = True
        await super().shutdown(grace)

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        if method is None:
            return asyncio.get_running_loop().create_task(self._take_unknown())
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._add_takers(method, 1, ended)
        return ended

    def _add_takers(self, method: bytes, n: int, ended: asyncio.Future[Any]) -> None:
        self._n_takers[method] += n
        self._n_idle[method] += n
        for _ in range(n):
            self._start(self._take(method, ended))

    async def _take(self, method: bytes, ended: asyncio.Future[Any]) -> None:
        """Take one call after another. If as many come in a round as are taken, twice as many are then."""
        resolver = _grpc._MethodResolver([], self._handlers)  # noqa: SLF001
        name, loop = method.decode(), asyncio.get_running_loop()
        while True:
            try:
                rpc = await self._request_registered_call(method)
            except _grpc._RequestCallError as error:  # noqa: SLF001
                if not self._is_stopping:
                    continue
                if not ended.done():
                    ended.set_exception(error)
                return
            self._n_idle[method] -= 1
            if not self._n_idle[method] and (n := self._n_takers[method]) < self._most_at_once:
                self._add_takers(method, n, ended)
            self._serve(rpc, name, resolver, self._used_interceptors)
            loop.call_soon(self._on_idle, method)  # those that come in the same round find it busy

    def _on_idle(self, method: bytes) -> None:
        self._n_idle[method] += 1

    async def _take_unknown(self) -> None:
        """Answer UNIMPLEMENTED until the server stops, which ends `_request_call` with an error."""
        no_methods = _grpc._MethodResolver([], {})  # noqa: SLF001
        while True:
            self._serve(await self._request_call(), "", no_methods, ())

    def _serve(
        self, rpc: Any, name: str, resolver: object, interceptors: Sequence[grpc.aio.ServerInterceptor]
    ) -> None:
        loop = asyncio.get_running_loop()
        answer = _grpc._handle_rpc(name, resolver, interceptors, rpc, loop, False)  # noqa: SLF001
        self._start(_grpc._schedule_rpc_coro(answer, rpc, loop, name or "unknown"))  # noqa: SLF001

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class AioServer(_aio.Server):  # type: ignore[misc]
    """A `grpc.aio.Server` that takes calls by `_AioServer`.

    Args:
        most_at_once: calls to one method that are taken in a round of the event loop.
    """

    def __init__(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        options: Sequence[Option],
        *,
        most_at_once: int,
    ) -> None:
        self._loop = _grpc.get_working_loop()
        arguments = _aio._augment_channel_arguments(options, None)  # noqa: SLF001
        self._server = _AioServer(self._loop, interceptors, arguments, most_at_once)


class Health(health.aio.HealthServicer):  # type: ignore[misc]
    """grpc's servicer, which has no `List`."""

    async def List(  # noqa: N802
        self,
        request: object,  # noqa: ARG002
        context: object,  # noqa: ARG002
    ) -> health_pb2.HealthListResponse:
        answer = health_pb2.HealthCheckResponse
        statuses = {name: answer(status=status) for name, status in self._server_status.items()}
        return health_pb2.HealthListResponse(statuses=statuses)


class _BadHeaders(logging.Filter):
    """Takes such records away. gRPC itself goes on with undecodable header bytes as Latin-1."""

    def __init__(self) -> None:
        super().__init__()
        self._said_at: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        message = str(record.msg)
        if message.startswith(_LEFT):
            return False
        if not message.startswith(_INVALID):
            return True
        metrics.BAD_HEADERS.inc()
        now = time.monotonic()
        if self._said_at is None or now - self._said_at >= _SAID_EVERY_S:
            self._said_at = now
            log.warning("a call's headers are not UTF-8", counted_in="inferflux_grpc_bad_headers_total")
        return False


def silence_logger() -> None:
    """Filter gRPC's logger, once in a process."""
    logger = logging.getLogger(_LOGGER)
    if not any(isinstance(one, _BadHeaders) for one in logger.filters):
        logger.addFilter(_BadHeaders())
