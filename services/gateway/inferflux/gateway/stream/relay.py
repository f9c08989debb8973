"""The reading of one token stream: live from its subject, where that has holes from the worker that has the
tokens, and else from the TOKENS stream."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from inferflux.api.ordering import InOrder
from inferflux.api.stream_state import StreamState, can_merge, merge
from inferflux.common.contract.errors import DeadlineExceeded, InvalidArgument, Unavailable
from inferflux.common.contract.messages.chunks import parse_chunk
from inferflux.common.process import logs
from inferflux.v1 import tokens_pb2

log = logs.get()


class TokenSource(Protocol):
    """A live subscription; `inferflux.common.bus.TokenSubscription` is one."""

    @property
    def dropped(self) -> bool: ...
    async def next(self, timeout_s: float) -> bytes: ...
    def next_nowait(self) -> bytes | None: ...


class ReplayBuffer(Protocol):
    """Remembers token messages; `inferflux.common.bus.Bus` is one."""

    @property
    def is_connected(self) -> bool: ...
    async def replay(self, subject: str, /) -> list[bytes]: ...


async def replayed(buffer: ReplayBuffer, subject: str) -> list[bytes]:
    """Return what the replay buffer holds of a subject.

    Raises:
        Unavailable: it does not answer. That is late too, but not later than the caller allowed.
    """
    try:
        return await buffer.replay(subject)
    except DeadlineExceeded as error:
        raise Unavailable(f"NATS does not answer: {error.message}", reason="NATS_UNAVAILABLE") from None


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """How patient a relay is.

    Attributes:
        silence_s: after this long without a message, the replay buffer is asked; then after twice as long,
            up to four times. A step is far shorter: by then a message may be lost.
        silence_limit_s: after this long without a message, while NATS is connected, the stream ends with an
            error.
        gap_limit_s: how long missing tokens may stay missing: NATS may start again meanwhile.
        gap_retry_s: how often they are asked for.
        drop_check_s: how often a silent stream looks whether its connection was lost.
        worker_s: how long a worker has to send again what is missing, before the replay buffer is asked.
        replay_s: how long the buffer has to answer, while what comes live waits; each time twice as long.
    """

    silence_s: float = 4.0
    silence_limit_s: float = 900.0
    gap_limit_s: float = 30.0
    gap_retry_s: float = 0.5
    drop_check_s: float = 1.0
    worker_s: float = 0.1
    replay_s: float = 0.5


class Relay:
    """Gives a request's chunks in order, each token once, until the terminal chunk.

    Chunks that wait already are merged into one, so a slow client or a busy machine costs fewer messages.

    Args:
        on_accept: given each chunk that is new, before it is merged with others; returns what the client gets
            for it, which may come later, or cut.
        on_bad: told why a message was ignored.
        want: asks the worker for the tokens from this one on. In a cluster of NATS the buffer may have missed
            what the subscription missed. None: the buffer alone is asked.
    """

    def __init__(
        self,
        source: TokenSource,
        buffer: ReplayBuffer,
        subject: str,
        *,
        offset: int = 0,
        limits: RelayLimits,
        clock: Callable[[], float] = time.monotonic,
        on_accept: Callable[[tokens_pb2.TokenChunk], Iterable[tokens_pb2.TokenChunk]] = lambda chunk: (
            chunk,
        ),
        on_bad: Callable[[InvalidArgument], None] = lambda _error: None,
        want: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self.has_received = False
        self._order = InOrder(offset)
        self._source = source
        self._buffer = buffer
        self._subject = subject
        self._limits = limits
        self._clock = clock
        self._on_accept = on_accept
        self._on_bad = on_bad
        self._want = want
        self._has_asked_worker = False
        self._replay_limit_s = limits.replay_s
        self._ready: deque[tokens_pb2.TokenChunk] = deque()
        # Since when tokens are missing, and from which one on.
        self._gap_since, self._gap_offset = 0.0, -1
        self._silent_since = clock()
        self._patience_s = limits.silence_s
        self._replay_due_at = self._silent_since + limits.silence_s
        self._must_replay = False
        self._replay_not_before = 0.0

    @property
    def state(self) -> StreamState:
        """The state of the stream, as far as it is known."""
        return self._order.state

    async def next(self) -> tokens_pb2.TokenChunk | None:
        """The next chunk, or None after the terminal one.

        Raises:
            Unavailable: tokens were lost for good (TOKENS_LOST), or no chunk came for too long (SILENT).
        """
        while not self._ready:
            if self.state.is_ended:
                return None
            await self._receive()
        return self._ready.popleft()

    async def replay(self) -> None:
        """Take in what the replay buffer holds.

        Raises:
            Unavailable: it does not answer.
        """
        self.take_all(await replayed(self._buffer, self._subject))

    def take_all(self, messages: Iterable[bytes]) -> None:
        """Take in what the replay buffer held."""
        for data in messages:
            self._take(data)

    async def receives_within(self, limit_s: float) -> bool:
        """Return whether a chunk of the request has come, or comes within `limit_s` seconds."""
        if not self.has_received:
            try:
                self._take(await self._source.next(limit_s))
            except TimeoutError:
                return False
        return self.has_received

    async def _receive(self) -> None:
        """Take in what is there, waiting for it if need be, and look after what is missing."""
        data = self._source.next_nowait()
        if data is None:
            try:
                data = await self._source.next(self._wait_s())
            except TimeoutError:
                await self._on_silence()
                return
        self._silent_since = self._clock()
        self._patience_s = self._limits.silence_s
        self._replay_due_at = self._silent_since + self._patience_s
        while data is not None:
            self._take(data)
            data = self._source.next_nowait()
        if self._source.dropped:
            self._must_replay = True
        if self._order.missing or self._must_replay:
            await self._recover()

    def _take(self, data: bytes) -> None:
        try:
            chunk = parse_chunk(data)
        except InvalidArgument as error:
            self._on_bad(error)
            return
        self.has_received = True
        for accepted in self._order.offer(chunk):
            for passed in self._on_accept(accepted):
                self._add(passed)
        missing = self._order.missing
        first = missing.start if missing else -1
        if first != self._gap_offset:  # what comes beyond it may be false, and far away
            self._gap_offset, self._gap_since = first, self._clock()

    def _add(self, chunk: tokens_pb2.TokenChunk) -> None:
        """Have a chunk passed on, without what is not for clients."""
        chunk.ClearField("held_text")
        chunk.ClearField("answer_format")
        if self._ready and can_merge(self._ready[-1], chunk):
            merge(self._ready[-1], chunk)
        else:
            self._ready.append(chunk)

    def _wait_s(self) -> float:
        if self._order.missing or self._must_replay:
            return max(0.01, self._replay_not_before - self._clock())
        return min(self._limits.drop_check_s, self._replay_due_at - self._clock())

    async def _on_silence(self) -> None:
        """Nothing came: perhaps it was lost, perhaps the connection was."""
        now = self._clock()
        if not self._buffer.is_connected:
            self._silent_since = now
        elif now - self._silent_since > self._limits.silence_limit_s:
            message = f"no chunk of the request came for {self._limits.silence_limit_s:g} s"
            raise Unavailable(message, reason="SILENT")
        if self._source.dropped:
            self._must_replay = True
        elif now >= self._replay_due_at:
            self._must_replay = True
            self._patience_s = min(self._patience_s * 2, self._limits.silence_s * 4)
            self._replay_due_at = now + self._patience_s
        if self._order.missing or self._must_replay:
            await self._recover()

    async def _recover(self) -> None:
        """Fill from the worker, then from the replay buffer, not more often than `gap_retry_s`."""
        now = self._clock()
        if now < self._replay_not_before:
            return
        if self._want is not None and not self._has_asked_worker:
            await self._ask_worker(now)
            return
        self._has_asked_worker = False
        self._replay_not_before = now + self._limits.gap_retry_s
        try:
            async with asyncio.timeout(self._replay_limit_s):
                await self.replay()
        except (Unavailable, TimeoutError) as error:
            log.debug("no replay", subject=self._subject, error=str(error))
            self._replay_limit_s *= 2
            self._must_replay = True
            self._gap_since = self._clock()  # the buffer has not had its say yet
            return
        self._must_replay = False
        missing = self._order.missing
        if missing and self._clock() - self._gap_since > self._limits.gap_limit_s:
            message = f"tokens {missing.start} to {missing.stop - 1} of the answer were lost"
            raise Unavailable(message, reason="TOKENS_LOST")

    async def _ask_worker(self, now: float) -> None:
        missing = self._order.missing
        first = missing.start if missing else self.state.tokens_end
        self._has_asked_worker, self._replay_not_before = True, now + self._limits.worker_s
        if self._want is not None:
            await self._want(first)
