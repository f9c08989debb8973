"""A grpc.aio server with what every InferFlux service wants of one: see `build_server`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from inferflux.common.contract.errors import Unavailable
from inferflux.common.process.tasks import Background
from inferflux.common.process.tls import ServerTls

from .audit.writer import NO_AUDIT, AuditTrail
from .grpc_interceptor import Admit, RequestInterceptor
from .grpc_options import SERVER_OPTIONS, Option
from .grpc_rules import MethodRule
from .grpc_tls import server_credentials
from .pinned_grpc import AioServer, Health, silence_logger

# Of calls that run when a server leaves: `stop` ends them before.
_LEAVE_LIMIT_S = 86_400.0


class GrpcServer:
    """A server with health and reflection. Use: add servicers to `.server`, `add` their names, `start`."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self.server = server
        self._names: list[str] = []
        self._is_serving = False
        # Services that serve or do not whatever the whole does.
        self._apart: dict[str, bool] = {}
        self._health = Health()
        self._health_changes = Background()
        self._leaving: asyncio.Future[None] | None = None
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)

    def add(self, descriptor_name: str) -> None:
        """Announce a service, e.g. "inferflux.v1.ModelService", in health and reflection."""
        self._names.append(descriptor_name)

    async def start(
        self, listen: str, *, variable: str = "", tls: ServerTls | None = None, has_reflection: bool = True
    ) -> int:
        """Bind and serve; health says NOT_SERVING until `set_serving(True)`.

        Args:
            tls: None serves plain text.
            has_reflection: whether it describes its methods to those who may call that.

        Returns:
            The bound port.

        Raises:
            Unavailable: the address cannot be bound; names it, and `variable` when given.
        """
        if has_reflection:
            reflection.enable_server_reflection(
                [*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME], self.server
            )
        try:
            # gRPC wants a host where our settings leave it out for every interface.
            target = f"0.0.0.0{listen}" if listen.startswith(":") else listen  # noqa: S104
            port: int = (
                self.server.add_insecure_port(target)
                if tls is None
                else self.server.add_secure_port(target, server_credentials(tls))
            )
        except RuntimeError:
            port = 0
        if port == 0:
            where = f"{listen} ({variable})" if variable else listen
            message = f"cannot listen on {where}: the address is in use or not of this machine"
            raise Unavailable(message, reason="ADDRESS_UNAVAILABLE", retry_delay_s=None)
        await self._announce()
        await self.server.start()
        return port

    def set_serving(self, serving: bool, *, of: Mapping[str, bool] | None = None) -> None:
        """Say SERVING or NOT_SERVING for "" and for every service that `of` does not name.

        Args:
            of: whether single services serve.
        """
        self._is_serving, self._apart = serving, dict(of or {})
        self._health_changes.start(self._announce())

    async def leave(self) -> None:
        """Say NOT_SERVING, close the port, send clients away (GOAWAY). Calls that run go on until `stop`."""
        self._is_serving, self._apart = False, {}
        await self._announce()
        self._leaving = asyncio.ensure_future(self.server.stop(_LEAVE_LIMIT_S))

    async def stop(self, grace_s: float) -> None:
        """Say NOT_SERVING, take no new calls, give running ones `grace_s` seconds, then cancel them."""
        self._is_serving, self._apart = False, {}
        await self._announce()
        await self.server.stop(grace_s)
        if self._leaving is not None:
            await self._leaving

    async def _announce(self) -> None:
        kind = health_pb2.HealthCheckResponse
        for name in ("", *self._names):
            serves = self._apart.get(name, self._is_serving)
            await self._health.set(name, kind.SERVING if serves else kind.NOT_SERVING)


def build_server(
    rules: Mapping[str, MethodRule] | None = None,
    admit: Admit | None = None,
    trail: AuditTrail = NO_AUDIT,
    *,
    options: Sequence[Option] = (),
    taken_at_once: int = 16,
) -> GrpcServer:
    """A server that admits callers before it receives their messages: see `RequestInterceptor`.

    It also knows request ids, maps errors to google.rpc.Status, counts, logs and audits calls. `options` come
    after the defaults and win over them.

    Args:
        taken_at_once: calls to one method that are taken in a round of the event loop. With many, calls that
            admission does not hold back lose their places for bodies to each other.
    """
    silence_logger()
    interceptor = RequestInterceptor(rules, admit, trail)
    return GrpcServer(AioServer([interceptor], [*SERVER_OPTIONS, *options], most_at_once=taken_at_once))
