"""Token chunks to their readers: each is in the stream once and in order, also when NATS was away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, Unavailable
from inferflux.common.process import logs
from inferflux.common.process.tasks import cancel_all
from inferflux.v1 import tokens_pb2

log = logs.get("worker.emit")

# Between NATS refusing messages and asking whether it takes them again.
_REFUSED_WAIT_S = 1.0
# A stream takes messages in a moment after NATS has confirmed them.
_TAKEN_IN_S = 0.05
# Chunks wait no longer than this for those before them, once NATS is there.
_BEHIND_LIMIT_S = 2.0
# Asking the stream what it holds takes no longer: a cluster of NATS that has lost its leader does not answer,
# and readers wait meanwhile.
_ASKING_LIMIT_S = 1.0
# Requests whose part of the stream is read at the same time: chunks wait meanwhile.
_REPLAYS_AT_ONCE = 16


class Emitter:
    """Publishes token chunks.

    A chunk that cannot be sent because NATS is away or takes no more is not lost: every chunk of a request is
    kept until half a minute after its end. After a reconnect, or once NATS takes messages again, those that
    the stream does not hold are published. What is emitted meanwhile waits for them, so that the stream has
    each chunk once and in order. Where the stream does not answer all are published: readers drop repeats.

    Args:
        kept: the chunks that are kept, by token subject.
    """

    def __init__(self, bus: Bus, kept: Callable[[], dict[str, list[bytes]]]) -> None:
        self._bus = bus
        self._kept = kept
        self._refused = asyncio.Event()
        self._connected = asyncio.Event()
        self._republishing = asyncio.Lock()
        # Whether chunks wait for earlier ones: these, by subject, since the others were last looked at.
        self._is_behind = False
        self._waiting: list[tuple[str, bytes]] = []
        self._connected_since_s = 0.0

    def on_disconnect(self) -> None:
        """Discard what is not sent yet: it would come before what the stream has lost."""
        self._bus.discard_unsent(subjects.TOKENS_PREFIX)
        self._fall_behind()

    def on_connect(self) -> None:
        """The connection is there again: publish what was lost, before what else was lost is made again.

        A server alone comes back without the stream, which is made first.
        """
        if self._bus.is_clustered:
            self._connected.set()
            self._refused.set()

    def _fall_behind(self) -> None:
        """The connection broke, or NATS refused a chunk: what follows waits for `republish`."""
        self._is_behind = True
        self._connected_since_s = 0.0

    async def publish(self, subject: str, chunk: bytes) -> None:
        """Publish a chunk that is kept already, or have it wait for those before it."""
        if self._must_wait():
            self._waiting.append((subject, chunk))
        elif not await self._try(subject, chunk):
            self._fall_behind()

    async def repeat_refused(self) -> None:
        """Publish everything again, for ever, whenever NATS has refused something and then takes it again."""
        while True:
            await self._refused.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REFUSED_WAIT_S):
                    await self._connected.wait()
            self._connected.clear()
            with contextlib.suppress(InferFluxError):
                await self._bus.flush()
                await self.republish()

    async def republish(self) -> None:
        """Publish what the stream misses of what is kept.

        Raises:
            InferFluxError: NATS does not take it; `repeat_refused` will try again.
        """
        async with self._republishing:
            await self._republish()

    async def _republish(self) -> None:
        self._refused.clear()
        self._waiting.clear()  # all of it is kept, and compared now
        kept = self._kept()
        try:
            await self._bus.flush()
            lost = await self._lost(kept)
            for subject, chunks in lost.items():
                for chunk in chunks:
                    await self._try(subject, chunk)
                await self._bus.flush()
        except InferFluxError:
            self._refused.set()
            raise
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for subject, chunk in waiting:
                await self._try(subject, chunk)
        self._is_behind = self._refused.is_set()
        if lost:
            log.info("published again", requests=len(lost))

    async def repeat(self, subject: str, offset: int) -> None:
        """Publish what is kept of a request from a token on: a reader has lost it."""
        for chunk in self._kept().get(subject, ()):
            parsed = tokens_pb2.TokenChunk.FromString(chunk)
            if parsed.offset + max(len(parsed.token_ids), 1) > offset:
                await self._try(subject, chunk)

    async def _lost(self, kept: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        """Chunks, of these by subject, that the stream does not hold, having had the time to take them in."""
        try:
            async with asyncio.timeout(_ASKING_LIMIT_S):
                lost = await self._not_held(kept)
                if not lost:
                    return lost
                await asyncio.sleep(_TAKEN_IN_S)
                return await self._not_held(lost)
        except (Unavailable, DeadlineExceeded, TimeoutError) as error:
            log.warning("the token stream cannot be read", error=str(error) or "it takes too long")
            return kept

    async def _not_held(self, kept: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        lost: dict[str, list[bytes]] = {}
        left = iter(kept.items())

        async def look() -> None:
            for subject, chunks in left:  # each of them is taken by one look
                held = set(await self._bus.replay_one_by_one(subject))
                if missing := [chunk for chunk in chunks if chunk not in held]:
                    lost[subject] = missing

        looks = [asyncio.create_task(look()) for _ in range(min(len(kept), _REPLAYS_AT_ONCE))]
        try:
            await asyncio.gather(*looks)
        finally:
            await cancel_all(looks)
        return lost

    def _must_wait(self) -> bool:
        """True if a chunk has to wait for earlier ones. Readers wait with it, so not for long."""
        if not self._is_behind:
            return False
        if not self._bus.is_connected:
            return True
        now = time.monotonic()
        self._connected_since_s = self._connected_since_s or now
        return now - self._connected_since_s < _BEHIND_LIMIT_S

    async def _try(self, subject: str, payload: bytes) -> bool:
        """False when NATS does not take it."""
        try:
            await self._bus.publish(subject, payload)
        except Unavailable as error:
            if not self._refused.is_set():
                log.warning("not published yet, nor what follows", subject=subject, error=str(error))
            self._refused.set()
            return False
        return True
