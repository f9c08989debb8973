"""Writes the audit trail beside the calls: a bounded queue, and one task that empties it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from inferflux.common.contract.errors import Unavailable
from inferflux.common.process import logs, metrics

from .chain import Head
from .entry import TextDigest
from .verify import OPENED

log = logs.get()

REFUSAL = "AUDIT_UNAVAILABLE"
"""Reason of calls that are refused because the trail cannot be written."""

# Lines in one write.
_BATCH = 1024
_RETRY_S = 1.0


class Sink(Protocol):
    """Sink of audit lines; it blocks. `ChainFiles` and `StreamSink` are some."""

    @property
    def head(self) -> Head: ...
    @property
    def opening(self) -> Mapping[str, object]: ...
    def append(self, records: Iterable[Mapping[str, object]], /) -> None: ...
    def close(self) -> None: ...


class AuditTrail:
    """The trail of one process.

    Args:
        sink: None writes nothing.
        service: in every line.
        text_key: of the keyed hashes of prompts and answers.
        keeps_raw: whether lines have prompts and answers as they are too.
        limit: lines that wait to be written; one more is lost, and counted.
        refuses: whether calls are refused while lines cannot be written.
    """

    def __init__(
        self,
        sink: Sink | None,
        *,
        service: str = "",
        text_key: bytes = b"",
        keeps_raw: bool = False,
        limit: int = 16384,
        refuses: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sink = sink
        self._service = service
        self._text_key = text_key
        self._keeps_raw = keeps_raw
        self._limit = limit
        self._refuses = refuses
        self._clock = clock
        self._queue: deque[Mapping[str, object]] = deque()
        self._has_lines = asyncio.Event()
        self._is_closing = False
        self._why_failing = ""
        # Lines that were lost, and calls that were refused, since the last good write.
        self._n_lost = self._n_refused = 0
        self._n_sealed = sink.head.seq if sink is not None else 0

    def write(self, event: str, **fields: object) -> None:
        """Queue a line. Never waits; a full queue loses the line, and counts it."""
        if self._sink is None:
            return
        if fields.get("reason") == REFUSAL:
            self._n_refused += 1
        elif len(self._queue) >= self._limit:
            self._n_lost += 1
            metrics.AUDIT_LINES_LOST.inc()
        else:
            self._queue.append(self._record(event, fields))
        self._has_lines.set()

    def check(self) -> None:
        """Let a call begin.

        Raises:
            Unavailable: its line could not be written, and the trail is set to refuse it.
        """
        if not self.takes_calls:
            message = "the audit trail cannot be written, and calls without it are refused"
            raise Unavailable(message, reason=REFUSAL, retry_delay_s=_RETRY_S)

    def text(self) -> TextDigest:
        """Digest for a prompt or an answer."""
        return TextDigest(self._text_key, keeps_raw=self._keeps_raw)

    @property
    def takes_calls(self) -> bool:
        """True if calls may begin now."""
        return not self._refuses or not (self._why_failing or len(self._queue) >= self._limit // 2)

    @property
    def problem(self) -> str:
        """Why lines cannot be written now; "" if they can."""
        return self._why_failing

    async def run(self) -> None:
        """Write what is queued, until `close`."""
        if self._sink is None:
            return
        self._queue.appendleft(self._record(OPENED, self._sink.opening))
        self._has_lines.set()
        while not (self._is_closing and not self._queue):
            await self._has_lines.wait()
            self._has_lines.clear()
            await self._write_queued(self._sink)

    async def close(self, task: asyncio.Task[Any], limit_s: float) -> None:
        """Write what is queued and a last line, for at most `limit_s` seconds, and end.

        Args:
            task: that of `run`.
        """
        if self._sink is not None:
            self._queue.append(self._record("closed", {}))
        self._is_closing = True
        self._has_lines.set()
        try:
            await asyncio.wait_for(task, limit_s)
        except TimeoutError:  # a thread may still write: the sink is left to the end of the process
            log.error("audit lines were lost", lines=len(self._queue), why=self._why_failing or "no time")
        else:
            if self._sink is not None:
                log.info("the audit trail ends", seq=self._sink.head.seq, head=self._sink.head.hash)
                self._sink.close()

    async def _write_queued(self, sink: Sink) -> None:
        while self._queue or self._n_lost or self._n_refused:
            batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
            while not await self._is_written(sink, batch):
                batch = []  # the sink has kept them
                await asyncio.sleep(_RETRY_S)

    async def _is_written(self, sink: Sink, batch: list[Mapping[str, object]]) -> bool:
        if not self._why_failing and (self._n_lost or self._n_refused):
            lost = {"lost_lines": self._n_lost, "refused_calls": self._n_refused}
            batch.append(self._record("unaudited", lost))
            self._n_lost = self._n_refused = 0
        before = self._n_sealed
        try:
            await asyncio.to_thread(sink.append, batch)
        except OSError as error:
            self._fail(str(error))
            return False
        self._n_sealed = sink.head.seq
        metrics.AUDIT_LINES.inc(self._n_sealed - before)
        if self._why_failing:
            log.info("the audit trail is written again", seq=sink.head.seq)
            self._why_failing = ""
        return True

    def _fail(self, why: str) -> None:
        metrics.AUDIT_WRITE_ERRORS.inc()
        if not self._why_failing:
            consequence = (
                "calls are refused" if self._refuses else "lines wait, and are lost when too many do"
            )
            log.error("the audit trail cannot be written: " + consequence, why=why)
        self._why_failing = why

    def _record(self, event: str, fields: Mapping[str, object]) -> dict[str, object]:
        at = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        return {"at": at, "service": self._service, "event": event, **fields}


NO_AUDIT = AuditTrail(None)
"""Writes nothing."""
