"""The HTTP server: uvicorn on the gateway's own loop, bound before it serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Generator, Sequence
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from inferflux.common.contract.address import split
from inferflux.common.contract.errors import Unavailable
from inferflux.common.process.tasks import cancel_all
from inferflux.common.process.tls import ServerTls

from .front.pinned_uvicorn import Connections, protocol_factory
from .front.pinned_uvicorn_websocket import websocket_factory
from .paths.websocket import MAX_MESSAGE_BYTES

_BACKLOG = 1024
# An idle connection stays open for longer than a proxy keeps it, so that the proxy closes it first.
_KEEP_ALIVE_S = 75
# gRPC's servers give it as long.
_HANDSHAKE_LIMIT_S = 5.0


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the process, and no connection without a handshake for longer than a moment.

    Attributes:
        tls: how it speaks TLS; None: plain text.
    """

    tls: ssl.SSLContext | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.tls is None or sockets is None:
            await super().startup(sockets)
            return
        await super().startup([])
        loop = asyncio.get_running_loop()
        make: Any = self.config.http_protocol_class

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = make(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )
            return made

        for bound in sockets:
            server = await loop.create_server(
                protocol,
                sock=bound,
                ssl=self.tls,
                backlog=_BACKLOG,
                ssl_handshake_timeout=_HANDSHAKE_LIMIT_S,
                ssl_shutdown_timeout=_HANDSHAKE_LIMIT_S,
            )
            self.servers.append(server)


class HttpServer:
    """Serves an ASGI application. Use: `start`, and `stop` in the end.

    Args:
        trusted_proxies: addresses and networks whose forwarded headers say who calls.
    """

    def __init__(
        self, app: ASGIApp, connections: Connections | None = None, *, trusted_proxies: Sequence[str] = ()
    ) -> None:
        self.connections = connections or Connections()
        config = uvicorn.Config(
            cast("Any", app),
            http=cast("Any", protocol_factory(self.connections)),
            ws=cast("Any", websocket_factory(self.connections.pace)),
            ws_max_size=MAX_MESSAGE_BYTES,
            # A small compressed message can stand for a large one.
            ws_per_message_deflate=False,
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(trusted_proxies),
            forwarded_allow_ips=list(trusted_proxies),
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        # What strangers send is no event for the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._server = _Uvicorn(config)
        self._serving: asyncio.Task[None] | None = None
        # 0 until it serves.
        self.port = 0

    async def start(self, listen: str, *, variable: str, tls: ServerTls | None = None) -> None:
        """Bind and serve, over TLS if there is `tls`.

        Raises:
            Unavailable: the address cannot be bound; names it and `variable`.
        """
        bound = _bind(listen, variable)
        self.port = int(bound.getsockname()[1])
        self._server.tls = None if tls is None else tls.context()
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))

    async def stop(self, grace_s: float) -> None:
        """Take no new connections, give running calls `grace_s` seconds, then cancel them."""
        if self._serving is None:
            return
        self._server.should_exit = True
        await asyncio.wait([self._serving], timeout=grace_s)
        tasks = list(self._server.server_state.tasks)
        self._server.force_exit = True
        await cancel_all(tasks)
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.wait([self._serving], timeout=1.0)
        await cancel_all([self._serving])


def _bind(listen: str, variable: str) -> socket.socket:
    host, port = split(listen, variable)
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        message = f"cannot listen on {listen} ({variable}): {error.strerror or error}"
        raise Unavailable(message, reason="ADDRESS_UNAVAILABLE", retry_delay_s=None) from None
    bound.setblocking(False)
    return bound
