"""Audit lines on a stream, such as stdout: a chain that begins with the process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from .chain import AuditKeys, Head, seal


class StreamSink:
    """Sink of audit lines that writes to a stream; only the stream's reader keeps the lines.

    Args:
        descriptor: of the stream.
    """

    def __init__(self, descriptor: int, keys: AuditKeys) -> None:
        self._descriptor = descriptor
        self._keys = keys
        self.head = Head()
        self.opening: Mapping[str, object] = {"key": keys.key_id}
        self._rest = b""

    def append(self, records: Iterable[Mapping[str, object]]) -> None:
        """Seal and write records.

        Raises:
            OSError: not all could be written. They are kept: the next call goes on where this one stopped.
        """
        lines = []
        for record in records:
            line, self.head = seal(self.head, record, self._keys.chain)
            lines.append(line)
        self._rest += b"".join(lines)
        while self._rest:
            self._rest = self._rest[os.write(self._descriptor, self._rest) :]

    def close(self) -> None:
        """Leave the stream open: it is not this sink's."""
