"""The side that wants the state: packets that come go to the engine, which takes them into its KV cache."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from inferflux.common.process.tasks import cancel_all, is_set_within
from inferflux.common.tracing import Span, names
from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.metrics import KvMetrics
from inferflux.worker.model.spans import WorkerSpans

from .channel import ChannelClosed, KvChannel
from .engine_side import EngineSide
from .packets import Failed, PacketOrder
from .piece_files import PieceFolder
from .transport import STALL_S, KvTransport

# For the rest, once nearly all is here. A scheduler that is gone does not say that it is not wanted: its
# request runs on at the source, and more of it would come for as long as it does.
_REST_S = 30.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """A state that is wanted.

    Attributes:
        key: of the request here.
        limit_s: within which nearly all of it has to be here.
        traceparent: of the request; empty: none.
        tokens, scope: its first tokens, as CachedPrefix has them: those that are cached here are not sent.
    """

    key: str
    source: scheduler_pb2.KvSource
    wish: worker_pb2.KvWish
    limit_s: float
    traceparent: str = ""
    tokens: bytes = b""
    scope: str = ""


@dataclass(slots=True)
class _Piece:
    """A piece that the engine has not taken yet."""

    n_past: int
    n_bytes: int
    name: str


class Taking:
    """One transfer, from the wish until the engine has all that comes.

    Args:
        number: of the import.
        on_caught_up: awaited once nearly all of it is here, with its first tokens that are.

    Attributes:
        tokens: the first ones whose state is in the KV cache.
        n_bytes: of the pieces that are.
        busy_s: how long pieces were on their way.
        is_told: nearly all of it was here, and `on_caught_up` was told.
    """

    def __init__(
        self,
        number: int,
        wanted: Fetched,
        carrier: KvTransport,
        folder: PieceFolder,
        engine: EngineSide,
        metrics: KvMetrics,
        spans: WorkerSpans,
        on_caught_up: Callable[[int], Awaitable[None]],
    ) -> None:
        self.number = number
        self.wanted = wanted
        self.tokens = 0
        self.n_bytes = 0
        self.busy_s = 0.0
        self.carrier = carrier
        self._folder = folder
        self._engine = engine
        self._metrics = metrics
        self._spans = spans
        self._on_caught_up = on_caught_up
        self._order = PacketOrder(wanted.wish)
        self._channel = KvChannel(follow=self._order.follow, check=self._order.check)
        self._given: deque[_Piece] = deque()
        self._busy_since_s = 0.0
        self._progress_s = time.monotonic()
        # What has to be in the KV cache for nearly all of it to be here; None: that is not known yet.
        self._nearly_all: int | None = None
        self.is_told = False
        self._has_all = False
        self._failure: Failed | None = None
        self._news = asyncio.Event()
        # The engine has said what is here already.
        self._is_known = asyncio.Event()
        self._import_span: Span | None = None

    async def run(self) -> None:
        """Fetch it.

        Raises:
            Failed: it did not come, or not all of it. What did is in the KV cache, for any request.
        """
        wish, source, began_s = self.wanted.wish, self.wanted.source, time.monotonic()
        attributes = {
            names.REQUEST_ID: wish.request_id,
            names.KV_BACKEND: self.carrier.name,
            names.KV_SOURCE: source.worker_id,
        }
        span = self._spans.begin(names.KV_TRANSFER, self.wanted.traceparent, attributes)
        # A request with the key waits from now on.
        self._tell_engine(tokens=self.wanted.tokens)
        tasks = [asyncio.create_task(self._fetch()), asyncio.create_task(self._pass_on())]
        try:
            await self._until_here(self.wanted.limit_s)
            self._metrics.caught_up(self.carrier.name, time.monotonic() - began_s)
            span.event("caught_up", {names.COMPUTED_TOKENS: self.tokens})
            self.is_told = True
            await self._on_caught_up(self.tokens)
            await self._until_over()
        except Failed as failure:
            span.fail(failure.reason, str(failure))
            raise
        finally:
            if not self._has_all:
                self._tell_engine(is_over=True)
            await cancel_all(tasks)
            for packet in self._channel.drain():
                if packet.name:
                    self._folder.remove(packet.name)
            for each in span, self._import_span or span:
                each.set({names.KV_BYTES: self.n_bytes, names.COMPUTED_TOKENS: self.tokens})
                each.end()

    def on_imported(self, news: engine_pb2.EngineImported) -> None:
        """The engine has taken pieces, or takes no more."""
        now_s = self._progress_s = time.monotonic()
        self.tokens = max(self.tokens, news.tokens)
        self._is_known.set()
        while self._given and self._given[0].n_past <= self.tokens:
            piece = self._given.popleft()
            self.n_bytes += piece.n_bytes
            self._channel.release(piece.n_bytes)
            self._metrics.piece_came(self.carrier.name, piece.n_bytes)
            if not self._given:
                self.busy_s += now_s - self._busy_since_s
        if news.error:
            self._fail(Failed("engine", news.error))
        self._news.set()

    def end(self, failure: Failed) -> None:
        """Give it up."""
        self._fail(failure)
        self._news.set()

    def remove_given(self) -> None:
        """The engine died: it does not remove what it was given."""
        for piece in self._given:
            self._folder.remove(piece.name)

    async def _fetch(self) -> None:
        """Fill the channel; once more, for what has not come, if the connection is cut."""
        wish = worker_pb2.KvWish()
        wish.CopyFrom(self.wanted.wish)
        if self.wanted.tokens:
            await self._is_known.wait()
            wish.known_tokens = self._order.n_past = self.tokens
        try:
            try:
                await self.carrier.fetch(self.wanted.source, wish, self._channel, self._folder)
            except Failed as failure:
                if failure.reason != "lost":
                    raise
                wish.known_tokens = self._order.n_past
                await self.carrier.fetch(self.wanted.source, wish, self._channel, self._folder)
        except Failed as failure:
            self._channel.close(str(failure))
            # After what came before it.
            self._fail(failure)
            self._news.set()
        except ChannelClosed:
            pass

    async def _pass_on(self) -> None:
        """Give the engine what the channel has."""
        while True:
            try:
                packet, began_s = await self._channel.get()
            except ChannelClosed:
                return
            self._progress_s = time.monotonic()
            if packet.n_bytes:
                if not self._given:
                    self._busy_since_s = began_s
                self._given.append(_Piece(packet.n_past, packet.n_bytes, packet.name))
                self._begin_import_span()
                self._tell_engine(path=str(self._folder.path_of(packet.name)), n_past=packet.n_past)
            if packet.error:
                self._fail(Failed("refused", packet.error))
            elif packet.is_caught_up or packet.is_last:
                self._nearly_all = self._order_so_far(packet)
            if packet.is_last:
                self._has_all = not packet.error
                if self._has_all:
                    self._tell_engine(is_over=True)
                self._news.set()
                return
            self._news.set()

    def _order_so_far(self, packet: worker_pb2.KvPacket) -> int:
        """Tokens of all pieces up to this packet."""
        given = self._given[-1].n_past if self._given else self.tokens
        return max(packet.n_past, given) if packet.n_bytes else given

    def _begin_import_span(self) -> None:
        if self._import_span is None:
            attributes = {names.REQUEST_ID: self.wanted.wish.request_id}
            self._import_span = self._spans.begin(names.KV_IMPORT, self.wanted.traceparent, attributes)

    async def _until_here(self, limit_s: float) -> None:
        """Return when nearly all is in the KV cache."""
        ends_s = time.monotonic() + limit_s
        while self._nearly_all is None or self.tokens < self._nearly_all:
            self._check()
            left_s = ends_s - time.monotonic()
            if self._given:
                left_s = min(left_s, self._progress_s + STALL_S - time.monotonic())
            if left_s <= 0:
                raise Failed("timeout", f"not here in time: {self.tokens} tokens are")
            await self._wait(left_s)
        self._check()

    async def _until_over(self) -> None:
        """Return when the last piece is in the KV cache."""
        ends_s = time.monotonic() + _REST_S
        while not self._has_all or self._given:
            self._check()
            now_s = time.monotonic()
            left_s = math.inf if self._has_all else ends_s - now_s
            if self._given:
                left_s = min(left_s, self._progress_s + STALL_S - now_s)
            if left_s <= 0:
                raise Failed("timeout", f"the rest did not come in time, after {self.tokens} tokens")
            await self._wait(left_s)

    async def _wait(self, seconds: float) -> None:
        await is_set_within(self._news, seconds)
        self._news.clear()

    def _check(self) -> None:
        if self._failure is not None and not self._channel.n_packets:
            raise self._failure

    def _fail(self, failure: Failed) -> None:
        self._failure = self._failure or failure

    def _tell_engine(
        self, *, path: str = "", n_past: int = 0, is_over: bool = False, tokens: bytes = b""
    ) -> None:
        key = self.wanted.key
        command = engine_pb2.EngineImport(id=self.number, key=key, path=path, n_past=n_past, is_over=is_over)
        if tokens:
            command.token_ids, command.cache_scope = tokens, self.wanted.scope
        self._engine.send(engine_pb2.EngineCommand(import_state=command))
