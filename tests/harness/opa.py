"""A server that speaks OPA's data API, and does as a test tells it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

PATH = "/v1/data/inferflux/decision"

Answer = Callable[[dict[str, Any]], Awaitable[bytes]]
"""From `input` to a whole HTTP response; an empty one closes the connection."""


class OpaServer:
    """Listens on loopback.

    Attributes:
        answer: what it does with a question.
        inputs: that came, in order.
        heads: the requests' lines and headers.
    """

    def __init__(self, answer: Answer, port: int = 0) -> None:
        self.answer = answer
        self.inputs: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.port = port
        self._listener: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Listen no more, and close what is open."""
        assert self._listener is not None
        self._listener.close()
        for writer in self._open:
            writer.transport.abort()

    def of_step(self, step: str) -> list[dict[str, Any]]:
        return [each for each in self.inputs if each["step"] == step]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    int(line.partition(":")[2])
                    for line in head.splitlines()
                    if line.lower().startswith("content-length:")
                )
                question = json.loads(await reader.readexactly(length))
                self.heads.append(head)
                self.inputs.append(question["input"])
                response = await self.answer(question["input"])
                if not response:
                    return
                writer.write(response)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[OpaServer]:
    server = OpaServer(answer)
    await server.start()
    try:
        yield server
    finally:
        server.stop()


def response(body: bytes, *, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def saying(result: object) -> Answer:
    """The document has this value for every input."""

    async def answer(_input: dict[str, Any]) -> bytes:
        return response(json.dumps({"result": result}).encode())

    return answer


def by_rules(path: Path) -> Answer:
    """The document is as a file of Rego has it, evaluated by regorus: OPA's own server is in no package.

    Raises:
        ImportError: `opa-eval` is not there for this machine.
    """
    import opa_eval

    rules = opa_eval.OpaEval(str(path), query="data.inferflux.decision")

    async def answer(about: dict[str, Any]) -> bytes:
        result = json.loads(rules.evaluate(json.dumps(about)))
        return response(json.dumps({} if result is None else {"result": result}).encode())

    return answer
