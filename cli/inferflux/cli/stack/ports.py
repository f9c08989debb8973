"""The ports of a stack, chosen before anything starts."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from inferflux.cli.reach.errors import CommandError

from .options import StackOptions
from .servers import LOOPBACK, free_port

_LEFTOVER_WAIT_S = 5.0
# Where programs look for an HTTP server; on many machines another one is there already.
_USUAL_HTTP_PORT = 8080


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports on which the servers of a stack listen on loopback.

    Attributes:
        nats: of nats-server, and `redis` of valkey-server; also where another one takes their place.
        other_policies: of each further policy process.
        other_gateways: of each further gateway, that of gRPC and that of HTTP.
    """

    nats: int
    redis: int
    policy: int
    gateway: int
    http: int
    other_gateways: tuple[tuple[int, int], ...] = ()
    other_policies: tuple[int, ...] = ()

    @property
    def policies(self) -> tuple[int, ...]:
        """Port of each policy process, in the order of their names."""
        return (self.policy, *self.other_policies)

    @property
    def gateways(self) -> tuple[tuple[int, int], ...]:
        """gRPC and HTTP port of each gateway, in the order of their names."""
        return ((self.gateway, self.http), *self.other_gateways)


async def choose(options: StackOptions, *, wait_for_leftovers: bool) -> Ports:
    """Check the ports asked for, and find free ones where none were.

    Args:
        wait_for_leftovers: a stack just ended here without tidying up; give its processes a moment.

    Raises:
        CommandError: some are taken; names them and the flags that change them.
    """
    asked = {
        "--nats-port": 0 if options.nats_url else options.nats_port,
        "--redis-port": 0 if options.redis_url else options.redis_port,
        "--policy-port": options.policy_port,
        "--gateway-port": options.gateway_port,
    }
    asked["--http-port"] = _http_port(options.http_port, set(asked.values()))
    chosen: dict[str, int] = {}
    taken: dict[str, int] = {}
    deadline = asyncio.get_running_loop().time() + (_LEFTOVER_WAIT_S if wait_for_leftovers else 0)
    for flag, port in asked.items():
        if port in chosen.values():
            raise CommandError(f"port {port} is asked for twice: change it with {flag}")
        while port and not _is_free(port):
            if asyncio.get_running_loop().time() >= deadline:
                taken[flag] = port
                break
            await asyncio.sleep(0.05)
        chosen[flag] = port or _another(set(chosen.values()) | set(asked.values()))
    if taken:
        raise CommandError(_all_taken(taken))
    numbers = list(chosen.values())

    def further(count: int) -> list[int]:
        more: list[int] = []
        for _ in range(count):
            numbers.append(_another(set(numbers)))
            more.append(numbers[-1])
        return more

    others = options.gateways - 1
    return Ports(
        nats=chosen["--nats-port"],
        redis=chosen["--redis-port"],
        other_policies=tuple(further(options.policies - 1)),
        policy=chosen["--policy-port"],
        gateway=chosen["--gateway-port"],
        http=chosen["--http-port"],
        other_gateways=tuple(zip(further(others), further(others), strict=True)),
    )


def _all_taken(ports: Mapping[str, int]) -> str:
    """All at once: where one stack runs already, another one lacks each of its ports."""
    flags, numbers = ", ".join(ports), ", ".join(map(str, ports.values()))
    if len(ports) == 1:
        return f"port {numbers} is taken: choose another with {flags} (0: any free one), or --free-ports"
    return f"ports {numbers} are taken: choose others with {flags} (0: any free one), or --free-ports"


def _http_port(asked: int | None, taken: set[int]) -> int:
    """The port that is asked for. If none is, the usual one, or any where that is taken."""
    if asked is not None:
        return asked
    return _USUAL_HTTP_PORT if _USUAL_HTTP_PORT not in taken and _is_free(_USUAL_HTTP_PORT) else 0


def _another(taken: set[int]) -> int:
    while (port := free_port()) in taken:
        pass
    return port


def _is_free(port: int) -> bool:
    return not bind_errno(LOOPBACK, port)


def bind_errno(host: str, port: int) -> int:
    """Number of the error with which an address cannot be bound; 0 if it can.

    Args:
        host: a name or an address; empty: every interface.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host or "0.0.0.0",  # noqa: S104 - as a service would
            port,
            type=socket.SOCK_STREAM,
        )[0]
        with socket.socket(family, kind) as probe:
            # A port whose last connections are in TIME_WAIT is free for a server; one that is listened on is
            # not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror:
        return errno.EADDRNOTAVAIL
    except OSError as error:
        return error.errno or errno.EADDRINUSE
    return 0
