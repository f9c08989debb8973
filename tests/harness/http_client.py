"""HTTP calls to a gateway, by OpenAI's client and by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import openai

WAIT_S = 20.0


def openai_client(port: int, key: str, **options: Any) -> openai.AsyncOpenAI:
    """OpenAI's client as it comes, pointed at a gateway."""
    return openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0, timeout=WAIT_S, **options
    )


@dataclass
class Answer:
    """An HTTP answer.

    Attributes:
        headers: lower-case names.
    """

    status: int
    headers: dict[str, str]
    body: bytes = b""
    raw_body: bytes = field(default=b"", repr=False)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error object."""
        found = self.json()["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return dict(found)


class Connection:
    """A connection that sends what a test wants sent. Use as an async context manager."""

    def __init__(self, port: int, key: str = "") -> None:
        self._port = port
        self._key = key
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()

    def abort(self) -> None:
        """Leave without a word."""
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a whole request."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        await self.send(self.head(method, path, {"content-length": str(len(data)), **(headers or {})}) + data)

    def head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        given = {"host": "gateway", **({"authorization": f"Bearer {self._key}"} if self._key else {})}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in {**given, **headers}.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def answer_head(self) -> Answer:
        """The status and the headers."""
        async with asyncio.timeout(WAIT_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(": ") for line in lines[1:] if line)
        return Answer(int(lines[0].split()[1]), {name.lower(): value for name, _, value in pairs})

    async def answer(self) -> Answer:
        """The whole answer."""
        answer = await self.answer_head()
        async with asyncio.timeout(WAIT_S):
            if "content-length" in answer.headers:
                answer.body = await self.reader.readexactly(int(answer.headers["content-length"]))
            elif "transfer-encoding" in answer.headers:
                answer.body = b"".join([chunk async for chunk in self.chunks()])
        return answer

    async def chunks(self) -> AsyncIterator[bytes]:
        """The parts of a chunked body."""
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
            if not size:
                return
            yield data[:-2]

    async def events(self) -> AsyncIterator[Any]:
        """The messages of a stream of events; the last one is "[DONE]"."""
        async for chunk in self.chunks():
            for part in chunk.decode().split("\n\n"):
                if part.startswith("data: "):
                    said = part.removeprefix("data: ")
                    yield said if said == "[DONE]" else json.loads(said)

    async def closed(self) -> bytes:
        """What comes until the server closes the connection."""
        async with asyncio.timeout(WAIT_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


class HttpClient:
    """Calls a gateway with one key, a connection for each call."""

    def __init__(self, port: int, key: str) -> None:
        self.port = port
        self.key = key

    def connection(self) -> Connection:
        return Connection(self.port, self.key)

    async def call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        async with self.connection() as connection:
            await connection.request(method, path, body, headers)
            return await connection.answer()

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.call("GET", path, headers=headers)

    async def post(self, path: str, body: object, **headers: str) -> Answer:
        return await self.call("POST", path, body, headers)

    async def chat(self, request_id: str = "", **fields: Any) -> Answer:
        """A chat with the model `demo`, unless `fields` say otherwise."""
        headers = {"x-request-id": request_id} if request_id else {}
        return await self.post("/v1/chat/completions", chat_body(**fields), **headers)


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": "hello"}]} | fields
