"""Small values in a JetStream bucket, laid out as NATS's own tools do (ADR-8).

Read when wanted and written if no other client has in between. There are no watchers: one is dead after a
restart of its server, and says nothing about it.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from . import jetstream
from .link import ApiError, Link

_OPERATION = "KV-Operation"
_EXPECTED_REVISION = "Nats-Expected-Last-Subject-Sequence"
_TIMEOUT_S = 2.0


class Entry(NamedTuple):
    """A value, and the revision that tells it from every other value its key has had."""

    value: bytes
    revision: int


class KeyValueBucket:
    """Values by key, the latest of each."""

    def __init__(self, link: Link, bucket: str) -> None:
        self._link = link
        self._bucket = bucket
        self._stream = jetstream.key_value_stream(bucket)

    async def get(self, key: str, *, timeout_s: float = _TIMEOUT_S) -> Entry | None:
        """The latest value; None when there is none, or no bucket.

        Raises:
            Unavailable, DeadlineExceeded: JetStream does not answer.
        """
        entry, is_deleted = await self._last(key, timeout_s)
        return None if is_deleted else entry

    async def create(self, key: str, value: bytes, *, timeout_s: float = _TIMEOUT_S) -> int | None:
        """Write the first value of a key, or the first since it was deleted.

        Returns:
            Its revision; None when there is a value.

        Raises:
            Unavailable, DeadlineExceeded: as `update`.
        """
        revision = await self.update(key, value, revision=0, timeout_s=timeout_s)
        if revision is None:
            entry, is_deleted = await self._last(key, timeout_s)
            if entry is not None and is_deleted:
                return await self.update(key, value, revision=entry.revision, timeout_s=timeout_s)
        return revision

    async def update(
        self, key: str, value: bytes, *, revision: int, timeout_s: float = _TIMEOUT_S
    ) -> int | None:
        """Write a value in place of that of `revision`; 0 stands for none.

        Returns:
            Its own revision; None when the key has had another value since, which stands.

        Raises:
            Unavailable: certainly not written: NOT_CONNECTED, or NO_RESPONDERS when there is no bucket.
            DeadlineExceeded: no answer; it may have been written, or still be.
        """
        headers = {_EXPECTED_REVISION: str(revision)}
        reply = await self._link.request(self._subject(key), value, timeout_s=timeout_s, headers=headers)
        answer = json.loads(reply.data)
        if error := answer.get("error"):
            if error["err_code"] == jetstream.WRONG_LAST_SEQUENCE:
                return None
            operation = f"write {key} into {self._bucket}"
            raise ApiError(operation, error["code"], error["err_code"], error["description"]).to_error()
        return int(answer["seq"])

    async def _last(self, key: str, timeout_s: float) -> tuple[Entry | None, bool]:
        """The latest message of a key, and whether it marks a deletion."""
        reply = await jetstream.last_message(
            self._link, self._stream, self._subject(key), timeout_s=timeout_s
        )
        if reply is None:
            return None, False
        entry = Entry(reply.data, int(reply.headers[jetstream.SEQUENCE]))
        return entry, _OPERATION in reply.headers

    def _subject(self, key: str) -> str:
        return f"$KV.{self._bucket}.{key}"
