"""An HTTP proxy: it passes plain requests on, and opens tunnels."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class HttpProxy:
    """Leads every host to this machine's loopback, whatever its name.

    Attributes:
        asked: the first line of each request.
        heads: the whole heads.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.heads: list[str] = []
        self.port = 0
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until `close`."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._pass_on(reader, writer)
        finally:
            writer.close()
            del self._open[task]

    async def close(self) -> None:
        for writer in self._open.values():
            writer.transport.abort()
        await asyncio.gather(*self._open)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await self._head(reader)
        method, target, _ = head.partition("\r\n")[0].split(" ")
        place = urlsplit(f"//{target}" if method == "CONNECT" else target)
        theirs, ours = await asyncio.open_connection("127.0.0.1", place.port or 80)
        answers = asyncio.create_task(_pump(theirs, writer))  # ends with the connection
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                await _pump(reader, ours)
            while method != "CONNECT":  # requests without a body, to one server
                ours.write(head.replace(f"{place.scheme}://{place.netloc}/", "/", 1).encode("latin-1"))
                head = await self._head(reader)
        finally:
            ours.close()
            await answers

    async def _head(self, reader: asyncio.StreamReader) -> str:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.heads.append(head)
        self.asked.append(head.partition("\r\n")[0])
        return head


async def _pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(1 << 16):
            to.write(data)
            await to.drain()
    to.close()


@contextlib.asynccontextmanager
async def http_proxy() -> AsyncIterator[HttpProxy]:
    """One that runs."""
    proxy = HttpProxy()
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
        await proxy.close()
