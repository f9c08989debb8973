"""A proxy before a server whose connections can be frozen, as a cut cable does, and broken later."""

from __future__ import annotations

import asyncio
import socket
import struct
from types import TracebackType
from typing import Self

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class CuttableProxy:
    """An async context: forwards to `endpoint` until it is frozen. Neither side is told of that.

    Args:
        breaks_after: bytes to the client after which its connections break, once; 0: never.
        resets: connections break by a TCP reset instead of an orderly end.
    """

    def __init__(self, endpoint: str, *, breaks_after: int = 0, resets: bool = False) -> None:
        self.has_broken = False
        self._resets = resets
        self._left = breaks_after
        self._host, _, port = endpoint.rpartition(":")
        self._port = int(port)
        self._is_frozen = False
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        self.break_up()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def freeze(self) -> None:
        """Nothing passes any more, either way."""
        self._is_frozen = True

    def break_up(self) -> None:
        """Both sides learn that the connections are gone."""
        for writer in self._writers:
            if self._resets and not writer.is_closing():
                linger = socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE
                writer.get_extra_info("socket").setsockopt(*linger)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        self._writers += [writer, up_writer]
        for source, sink, is_counted in ((reader, up_writer, False), (up_reader, writer, True)):
            pump = asyncio.create_task(self._pump(source, sink, is_counted=is_counted))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_counted: bool
    ) -> None:
        try:
            while data := await source.read(65536):
                if self._is_frozen:
                    continue
                sink.write(data)
                await sink.drain()
                if is_counted and not self.has_broken and self._left:
                    self._left = max(0, self._left - len(data))
                    if self._left == 0:
                        self.has_broken = True
                        self.break_up()
        except OSError:
            pass
        sink.close()
