"""A server of models, as web servers, Hugging Face and OCI registries speak, with every fault."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

LOOPBACK = "127.0.0.1/32"
TOKEN = "hf_" + "s" * 20


@dataclass
class Served:
    """A file, and how it is served.

    Attributes:
        breaks_at: offsets at which a connection is cut, each once.
        etag: strong entity tag; empty: none.
        etags: entity tags of the next answers, before `etag` is again.
        busy: statuses of the next answers, before the file is served.
        drip: bytes that are sent at a time, with a pause between; 0: all at once.
        claims: Content-Length, if another than the true one.
        location: where it redirects to, instead of an answer.
        headers: of each answer, redirects too.
        token: without which it is refused.
        together: what answers wait at, to begin at once.
    """

    data: bytes = b""
    breaks_at: list[int] = field(default_factory=list)
    etag: str = '"one"'
    etags: list[str] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    retry_after: str = "0"
    has_ranges: bool = True
    ignores_if_range: bool = False
    is_chunked: bool = False
    drip: int = 0
    claims: int | None = None
    location: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    token: str = ""
    content_type: str = "application/octet-stream"
    together: asyncio.Barrier | None = None


@dataclass
class Asked:
    """A request that came."""

    path: str
    headers: Mapping[str, str]


class ModelServer:
    """Serves `files`, by path with query."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.files: dict[str, Served] = {}
        self.asked: list[Asked] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ranges(self, path: str) -> list[str]:
        """The ranges that were asked for of a file, in order; empty: all of it."""
        return [asked.headers.get("range", "") for asked in self.asked if asked.path == path]

    def json(self, path: str, message: Any, **options: Any) -> None:
        """Serve a JSON document."""
        self.files[path] = Served(json.dumps(message).encode(), content_type="application/json", **options)

    def hugging_face(self, repository: str, files: Mapping[str, bytes], *, token: str = "") -> None:
        """Serve a repository: its API, and each file by a redirect to a store of large files."""
        siblings = []
        for name, data in files.items():
            digest = hashlib.sha256(data).hexdigest()
            siblings.append({"rfilename": name, "size": len(data)})
            linked = {
                "x-linked-etag": f'"{digest}"',
                "x-linked-size": str(len(data)),
                "x-repo-commit": "c" * 40,
            }
            self.files[f"/{repository}/resolve/{'c' * 40}/{name}"] = Served(
                location=f"{self.url}/lfs/{digest}?signature=secret", headers=linked, token=token
            )
            self.files[f"/lfs/{digest}?signature=secret"] = Served(data, etag='"store"')
        self.json(
            f"/api/models/{repository}?blobs=true", {"sha": "c" * 40, "siblings": siblings}, token=token
        )

    def registry(self, name: str, tag: str, data: bytes, *projectors: bytes) -> str:
        """Serve a model as a registry of OCI does; the path of its blob."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        layers = [
            {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{'0' * 64}", "size": 3},
            {"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": len(data)},
        ]
        for projector in projectors:
            of_it = f"sha256:{hashlib.sha256(projector).hexdigest()}"
            kind = "application/vnd.ollama.image.projector"
            layers.append({"mediaType": kind, "digest": of_it, "size": len(projector)})
            self.files[f"/v2/{name}/blobs/{of_it}"] = Served(projector)
        self.json(f"/v2/{name}/manifests/{tag}", {"schemaVersion": 2, "layers": layers})
        path = f"/v2/{name}/blobs/{digest}"
        self.files[path] = Served(data)
        return path

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = lines[0].split(" ")[1]
        pairs = (line.split(":", 1) for line in lines[1:] if line)
        headers = {name.lower(): value.strip() for name, value in pairs}
        self.asked.append(Asked(path, headers))
        served = self.files.get(path)
        if served is None:
            return await _send(writer, 404, {}, b"")
        if served.token and headers.get("authorization") != f"Bearer {served.token}":
            return await _send(writer, 401, {}, b"")
        if served.together is not None:
            await served.together.wait()
        if served.busy:
            return await _send(
                writer, served.busy.pop(0), {"retry-after": served.retry_after, **served.headers}, b""
            )
        if served.location:
            return await _send(writer, 302, {**served.headers, "location": served.location}, b"")
        return await self._send_file(writer, served, headers)

    async def _send_file(
        self, writer: asyncio.StreamWriter, served: Served, headers: Mapping[str, str]
    ) -> bool:
        etag = served.etags.pop(0) if served.etags else served.etag
        start, status, size = 0, 200, len(served.data)
        said = {"content-type": served.content_type, **served.headers} | ({"etag": etag} if etag else {})
        if served.has_ranges and (asked := headers.get("range")):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if headers.get("if-range", etag) != etag and not served.ignores_if_range:
                start = 0
            elif start >= size:
                return await _send(writer, 416, {**said, "content-range": f"bytes */{size}"}, b"")
            else:
                status, said["content-range"] = 206, f"bytes {start}-{size - 1}/{size}"
        end = size
        cut = next((at for at in served.breaks_at if start <= at < size), None)
        if cut is not None:
            served.breaks_at.remove(cut)
            end = cut
        length = size - start if served.claims is None else served.claims - start
        said |= {"transfer-encoding": "chunked"} if served.is_chunked else {"content-length": str(length)}
        head = f"HTTP/1.1 {status} X\r\n" + "".join(f"{k}: {v}\r\n" for k, v in said.items()) + "\r\n"
        writer.write(head.encode())
        step = served.drip or max(end - start, 1)
        for at in range(start, end, step):
            part = served.data[at : min(at + step, end)]
            writer.write(b"%x\r\n%s\r\n" % (len(part), part) if served.is_chunked else part)
            await writer.drain()
            await asyncio.sleep(0)
        if served.is_chunked and cut is None:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return cut is None and served.claims is None


async def _send(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str], body: bytes) -> bool:
    said = {"content-length": str(len(body)), **headers}
    head = f"HTTP/1.1 {status} X\r\n" + "".join(f"{k}: {v}\r\n" for k, v in said.items()) + "\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return True


@asynccontextmanager
async def model_server() -> AsyncIterator[ModelServer]:
    """A server on a free port."""
    server = ModelServer(0)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=1 << 20) as listening:
        server.port = listening.sockets[0].getsockname()[1]
        yield server
        listening.close()
