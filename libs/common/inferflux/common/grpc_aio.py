"""grpc.aio's server without its fatal flaw: a call whose method is not UTF-8 ends it.

grpc.aio 1.85 decodes the method of every call that is to none of its methods in the loop that takes calls,
outside of any handler (`_server_main_loop` in grpc's server.pyx.pxi). One such call raises there, and the
server shuts itself down. Calls to known methods never come that way: gRPC's core matches them by their bytes.
So calls to unknown methods are taken here, and answered without a look at their method. The names used are
private to grpc, whose version is pinned; a test sends such a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server as aio_server

from inferflux.common.grpc_options import Option

_grpc: Any = cygrpc
_aio: Any = aio_server


class _AioServer(_grpc.AioServer):  # type: ignore[misc]
    """Separates calls to unknown methods from the others."""

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Task[Any]:
        if method is None:
            return asyncio.get_running_loop().create_task(self._refuse_unknown())
        task: asyncio.Task[Any] = super()._make_request_call_future(method)
        return task

    async def _refuse_unknown(self) -> None:
        """Answer UNIMPLEMENTED until the server stops, which ends `_request_call` with an error."""
        loop = asyncio.get_running_loop()
        no_methods = _grpc._MethodResolver([], {})  # noqa: SLF001
        running: set[asyncio.Task[None]] = set()
        while True:
            rpc = await self._request_call()
            answer = _grpc._handle_rpc("", no_methods, (), rpc, loop, False)  # noqa: SLF001
            task = loop.create_task(_grpc._schedule_rpc_coro(answer, rpc, loop, "unknown"))  # noqa: SLF001
            running.add(task)
            task.add_done_callback(running.discard)


class AioServer(_aio.Server):  # type: ignore[misc]
    """A `grpc.aio.Server` that takes calls by `_AioServer`."""

    def __init__(self, interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[Option]) -> None:
        self._loop = _grpc.get_working_loop()
        arguments = _aio._augment_channel_arguments(options, None)  # noqa: SLF001
        self._server = _AioServer(self._loop, None, (), interceptors, arguments, None)
