"""Filters of tracebacks that gRPC logs for errors of clients.

Bad header bytes are counted and logged in one line. A client that left while it was answered is not logged.
"""

from __future__ import annotations

import logging
import time

from inferflux.common.process import logs, metrics

log = logs.get()

_LOGGER = "grpc._cython.cygrpc"
_INVALID = "Invalid encoding"
# A client left in the moment its answer was sent.
_LEFT = "ExecuteBatchError raised in core"
# At most one line in this time.
_SAID_EVERY_S = 60.0


class _BadHeaders(logging.Filter):
    """Takes such records away. gRPC itself goes on with undecodable header bytes as Latin-1."""

    def __init__(self) -> None:
        super().__init__()
        self._said_at: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        message = str(record.msg)
        if message.startswith(_LEFT):
            return False
        if not message.startswith(_INVALID):
            return True
        metrics.BAD_HEADERS.inc()
        now = time.monotonic()
        if self._said_at is None or now - self._said_at >= _SAID_EVERY_S:
            self._said_at = now
            log.warning("a call's headers are not UTF-8", counted_in="inferflux_grpc_bad_headers_total")
        return False


def silence() -> None:
    """Filter gRPC's logger, once in a process."""
    logger = logging.getLogger(_LOGGER)
    if not any(isinstance(one, _BadHeaders) for one in logger.filters):
        logger.addFilter(_BadHeaders())
