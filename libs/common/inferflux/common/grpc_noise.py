"""What gRPC logs about bytes of a stranger's: counted, and said in one line instead of a traceback each."""

from __future__ import annotations

import logging
import time

from prometheus_client import Counter

from inferflux.common import logs

log = logs.get()

BAD_HEADERS = Counter("inferflux_grpc_bad_headers", "Header values of calls that were not UTF-8.")

_LOGGER = "grpc._cython.cygrpc"
_INVALID = "Invalid encoding"
# At most one line in this time.
_SAID_EVERY_S = 60.0


class _BadHeaders(logging.Filter):
    """Takes gRPC's records about undecodable header bytes away; gRPC itself goes on with them as Latin-1."""

    def __init__(self) -> None:
        super().__init__()
        self._said_at: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(_INVALID):
            return True
        BAD_HEADERS.inc()
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
