"""Files in the JetStream object store, laid out as NATS's own tools do (ADR-20)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import Internal, InvalidArgument, NotFound
from inferflux.common.contract.requests.stream_limits import CHUNK_BYTES

from . import jetstream
from .link import ApiError, Link

# The metadata of a GGUF file, at its longest that a worker reads.
MAX_OBJECT_BYTES = 256 << 20

# Chunks under way at once: enough to keep the socket busy, little enough for the outbound buffer.
_WINDOW = 8
_PUT_TIMEOUT_S = 10.0
_MAX_INFO_BYTES = 16 << 10


class ObjectBucket:
    """Named files, whole in memory on both ends.

    Args:
        max_bytes: of a file; larger ones are neither stored nor read.
    """

    def __init__(self, link: Link, bucket: str, *, max_bytes: int = MAX_OBJECT_BYTES) -> None:
        self._link = link
        self._bucket = bucket
        self._max_bytes = max_bytes
        self._stream = jetstream.object_stream(bucket)

    async def put(self, name: str, data: bytes) -> None:
        """Store `data` under `name`, replacing what was there. Without effect if it is there already.

        Raises:
            InvalidArgument: it is too large.
            Unavailable, DeadlineExceeded: JetStream does not answer; nothing is replaced.
        """
        if len(data) > self._max_bytes:
            message = f"the object {name!r} has {len(data)} bytes: it must have at most {self._max_bytes}"
            raise InvalidArgument(message, field="data")
        digest = _digest(data)
        old = await self._info(name)
        if old is not None and old["digest"] == digest and not old.get("deleted"):
            return
        nuid = secrets.token_hex(11)
        chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
        info = {
            "name": name,
            "bucket": self._bucket,
            "nuid": nuid,
            "size": len(data),
            "chunks": len(chunks),
            "digest": digest,
            "mtime": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "options": {"max_chunk_size": CHUNK_BYTES},
        }
        is_stored = False
        try:
            for start in range(0, len(chunks), _WINDOW):
                window = chunks[start : start + _WINDOW]
                await asyncio.gather(*(self._publish(self._chunk_subject(nuid), chunk) for chunk in window))
            await self._publish(self._info_subject(name), json.dumps(info).encode(), {"Nats-Rollup": "sub"})
            is_stored = True
        finally:
            if not is_stored:
                await self._purge(self._chunk_subject(nuid))
        if old is not None:
            await self._purge(self._chunk_subject(old["nuid"]))

    async def remove(self, name: str) -> None:
        """Remove a file, if it is there.

        Raises:
            Unavailable, DeadlineExceeded: JetStream does not answer.
        """
        info = await self._info(name)
        if info is not None:
            await self._purge(self._info_subject(name))
            await self._purge(self._chunk_subject(info["nuid"]))

    async def get(self, name: str) -> bytes:
        """The file, its digest checked.

        Raises:
            NotFound: there is none of this name.
            Internal: it is damaged (OBJECT_DAMAGED), or too large (OBJECT_TOO_LARGE): that is not read.
            Unavailable, DeadlineExceeded: JetStream does not answer.
        """
        for _attempt in range(2):  # it may be replaced while it is read
            info = await self._info(name)
            if info is None or info.get("deleted"):
                raise NotFound(f"no object {name!r} in the bucket {self._bucket}", reason="OBJECT_NOT_FOUND")
            if info["size"] > self._max_bytes:
                message = (
                    f"the object {name!r} in the bucket {self._bucket} has {info['size']} bytes: "
                    f"at most {self._max_bytes} are read"
                )
                raise Internal(message, reason="OBJECT_TOO_LARGE")
            data = await self._read(info["nuid"], info["size"])
            if _digest(data) == info["digest"]:
                return data
        message = f"the object {name!r} in the bucket {self._bucket} does not match its digest"
        raise Internal(message, reason="OBJECT_DAMAGED")

    async def _read(self, nuid: str, size: int) -> bytes:
        """The first chunks of a file that hold `size` bytes."""
        chunks: list[bytes] = []
        left, sequence = size, 1
        while left > 0:
            reply = await jetstream.next_message(
                self._link, self._stream, self._chunk_subject(nuid), sequence
            )
            if reply is None:
                break
            chunks.append(reply.data)
            left -= len(reply.data)
            sequence = int(reply.headers[jetstream.SEQUENCE]) + 1
        return b"".join(chunks)

    async def _info(self, name: str) -> dict[str, Any] | None:
        data = await jetstream.read_last(self._link, self._stream, self._info_subject(name))
        return None if data is None else _read_info(data)

    async def _publish(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        reply = await self._link.request(subject, data, timeout_s=_PUT_TIMEOUT_S, headers=headers)
        if error := json.loads(reply.data).get("error"):
            raise ApiError(
                f"put into {self._bucket}", error["code"], error["err_code"], error["description"]
            ).to_error()

    async def _purge(self, subject: str) -> None:
        try:
            await self._link.api(f"STREAM.PURGE.{self._stream}", {"filter": subject})
        except ApiError as error:
            raise error.to_error() from error

    def _chunk_subject(self, nuid: str) -> str:
        return f"$O.{self._bucket}.C.{nuid}"

    def _info_subject(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _read_info(data: bytes) -> dict[str, Any] | None:
    """Read a file's info; None for what no client of the bucket writes, which counts as no file."""
    if len(data) > _MAX_INFO_BYTES:
        return None
    try:
        info = json.loads(data)
        is_whole = (
            isinstance(info["digest"], str)
            and isinstance(info["size"], int)
            and subjects.is_safe_token(info["nuid"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return info if is_whole else None


def _digest(data: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
