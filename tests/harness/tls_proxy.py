"""TLS before a server that speaks plain text, as an ingress or stunnel is."""

from __future__ import annotations

import asyncio
import contextlib

from inferflux.cli.stack.servers import LOOPBACK
from inferflux.common.process.tls import ServerTls, TlsFiles


class TlsProxy:
    """Passes on what comes over TLS. Its certificates may be renewed."""

    def __init__(self, port: int, files: TlsFiles) -> None:
        self._port = port
        self._tls = ServerTls(files)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0, ssl=self._tls.context())
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.break_connections()

    def break_connections(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(LOOPBACK, self._port)
        self._open |= {writer, inner_writer}
        try:
            await asyncio.gather(_pass_on(reader, inner_writer), _pass_on(inner_reader, writer))
        finally:
            self._open -= {writer, inner_writer}


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
