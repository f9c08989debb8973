"""Readiness of a process, asked of each in its own protocol."""

from __future__ import annotations

import asyncio
import json

from .plan import ProcessSpec

_ANSWER_LIMIT_S = 2.0
_PONG = b"+OK\r\n+PONG"


async def ask(spec: ProcessSpec) -> tuple[bool, str]:
    """Ask a process for its readiness, and for what it still waits, where it says so."""
    try:
        async with asyncio.timeout(_ANSWER_LIMIT_S):
            if spec.kind == "nats":
                return (await _exchange(spec, b"", 5)) == b"INFO ", ""
            if spec.kind == "valkey":
                login = f"AUTH {spec.login}\r\nPING\r\n".encode()
                return (await _exchange(spec, login, len(_PONG))) == _PONG, ""
            request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            return parse_readyz(await _exchange(spec, request, -1))
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False, ""


async def _exchange(spec: ProcessSpec, request: bytes, length: int) -> bytes:
    """Send, and read `length` bytes; -1 reads to the end."""
    reader, writer = await asyncio.open_connection(spec.host, spec.port)
    try:
        writer.write(request)
        return await (reader.read() if length < 0 else reader.readexactly(length))
    finally:
        writer.close()


def parse_readyz(answer: bytes) -> tuple[bool, str]:
    """Read a whole HTTP answer of /readyz: ready or not, and the conditions that do not hold."""
    head, _, body = answer.partition(b"\r\n\r\n")
    is_ready = head.split(b" ", 2)[1:2] == [b"200"]
    try:
        conditions = json.loads(body)["conditions"]
        missing: dict[str, list[str]] = {}
        for name, state in conditions.items():
            if not state["ok"]:
                missing.setdefault(str(state["detail"]), []).append(name)
    except (ValueError, KeyError, TypeError, AttributeError):
        return is_ready, ""
    said = (", ".join(names) + (f": {detail}" if detail else "") for detail, names in missing.items())
    return is_ready, "; ".join(said)
