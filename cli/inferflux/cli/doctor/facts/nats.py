"""What each nats-server of a URL says, and the streams of the first that takes this user."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from urllib.parse import urlsplit

import nats.errors

from inferflux.cli.doctor.seen import Failure, Nats, NatsServer
from inferflux.common.bus.addresses import parse_servers
from inferflux.common.bus.jetstream import STREAM_NOT_FOUND
from inferflux.common.bus.link import ApiError, Link
from inferflux.common.bus.pinned_nats import NatsClient
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError, InvalidArgument
from inferflux.common.process.tls import TlsFiles

_CONNECT_S = 3.0
_PORT = 4222


async def look(url: str, tls: TlsFiles) -> Nats:
    """Connect to each server, and ask the first that takes this user for its streams and its time."""
    try:
        servers = parse_servers(url)
    except InvalidArgument as error:
        return Nats((NatsServer("INFERFLUX_NATS_URL", Failure.URL, error.message),))
    greeted = await asyncio.gather(*map(_greet, servers))
    seen: list[NatsServer] = []
    nats_seen = Nats(())
    for server, found in zip(servers, greeted, strict=True):
        if found.failure is None:
            try:
                async with _linked(server, servers, tls) as link:
                    if not nats_seen.streams and found.has_jetstream:
                        nats_seen = await _streams(link)
            except (nats.errors.Error, OSError, InferFluxError, TimeoutError) as error:
                found = replace(found, failure=_failure_of(error), detail=str(error))
        seen.append(found)
    return replace(nats_seen, servers=tuple(seen))


async def _greet(server: str) -> NatsServer:
    """What a server says before anyone has said who they are."""
    parts = urlsplit(server if "://" in server else f"nats://{server}")
    host, port = parts.hostname or "", parts.port or _PORT
    found = NatsServer(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    writer = None
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port)
            line = await reader.readline()
    except TimeoutError:
        return replace(found, failure=Failure.SILENT)
    except ConnectionRefusedError:
        return replace(found, failure=Failure.REFUSED)
    except (OSError, ValueError) as error:
        return replace(
            found, failure=Failure.UNREACHABLE, detail=getattr(error, "strerror", "") or str(error)
        )
    finally:
        if writer is not None:
            writer.close()
    try:
        said = json.loads(line.removeprefix(b"INFO "))
        if not line.startswith(b"INFO "):
            raise ValueError
        return replace(found, max_payload=int(said["max_payload"]), has_jetstream=bool(said.get("jetstream")))
    except (ValueError, KeyError, TypeError):
        return replace(found, failure=Failure.FOREIGN)


@contextlib.asynccontextmanager
async def _linked(server: str, servers: list[str], tls: TlsFiles) -> AsyncIterator[Link]:
    """A connection to one server that is not made again."""
    client = NatsClient(tls)

    async def ignore(_error: Exception) -> None:
        """It is raised as well."""

    try:
        async with asyncio.timeout(_CONNECT_S):
            await client.connect(
                [server],
                name="inferctl doctor",
                allow_reconnect=False,
                connect_timeout=_CONNECT_S,
                error_cb=ignore,
            )
        link = Link(client, inbox_prefix=subjects.inbox_prefix(servers))
        link.listen()
        yield link
    finally:
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(_CONNECT_S):
                await client.close()


async def _streams(link: Link) -> Nats:
    streams: dict[str, bool | None] = {}
    ahead_s = None
    for name in subjects.STREAMS:
        before_s = time.time()
        try:
            info = await link.api(f"STREAM.INFO.{name}")
        except ApiError as error:
            streams[name] = False if error.err_code == STREAM_NOT_FOUND else None
        except InferFluxError:
            streams[name] = None
        else:
            streams[name] = True
            with contextlib.suppress(KeyError, ValueError):
                middle_s = (before_s + time.time()) / 2
                ahead_s = datetime.fromisoformat(info["ts"]).timestamp() - middle_s
    return Nats((), streams, ahead_s)


def _failure_of(error: Exception) -> Failure:
    said = str(error).lower()
    if isinstance(error, ssl.SSLError) or "tls" in said or "certificate" in said:
        return Failure.TLS
    if "authorization" in said or "authentication" in said:
        return Failure.LOGIN
    return Failure.TLS if isinstance(error, InvalidArgument) else Failure.SILENT
