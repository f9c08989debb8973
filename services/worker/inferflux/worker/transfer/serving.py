"""The side that has the state: wishes become exports of the engine, and its pieces packets."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from inferflux.common.tracing import names
from inferflux.v1 import engine_pb2, worker_pb2
from inferflux.worker.model.spans import WorkerSpans

from .channel import KvChannel
from .engine_side import EngineSide
from .packets import Failed
from .piece_files import PieceFolder

# Wishes that are answered, or wait for their request.
_MOST_ANSWERED = 32
# For a request that comes after the wish.
_MOST_WAIT_S = 30.0


@dataclass(slots=True, eq=False)
class _Export:
    wish: worker_pb2.KvWish
    out: KvChannel
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    n_bytes: int = 0
    n_past: int = 0
    error: str = ""


class Exports:
    """The wishes of other workers for one model's state.

    Args:
        folder: where the engine's pieces are; gives None while it has none.
    """

    def __init__(
        self, engine: EngineSide, spans: WorkerSpans, folder: Callable[[], PieceFolder | None]
    ) -> None:
        self._engine = engine
        self._spans = spans
        self._folder = folder
        self._ids = itertools.count(1)
        self._exports: dict[int, _Export] = {}
        self._n_answered = 0
        self._came = asyncio.Event()

    async def answer(self, wish: worker_pb2.KvWish, out: KvChannel) -> None:
        """Put the packets for a wish into a channel; the last one comes from who called.

        Raises:
            Failed: the wish is refused, or the engine cannot go on.
        """
        if self._n_answered >= _MOST_ANSWERED:
            raise Failed("busy", f"{_MOST_ANSWERED} workers are sent state already")
        if wish.model_digest != self._engine.digest:
            raise Failed("refused", "the model here is of another file")
        self._n_answered += 1
        try:
            key = self._engine.key_of(wish.tenant, wish.request_id) if wish.epoch else ""
            if key:
                await self._until_resident(key, wish.epoch, wish.limit_ms / 1000)
            await self._export(key, wish, out)
        finally:
            self._n_answered -= 1

    def request_came(self) -> None:
        """A request has become resident."""
        self._came.set()

    def on_piece(self, piece: engine_pb2.EnginePiece) -> None:
        """A piece is written, or no more come."""
        export = self._exports.get(piece.id)
        if export is None:
            self._drop(piece.name)
            return
        wish = export.wish
        packet = worker_pb2.KvPacket(
            tenant=wish.tenant,
            request_id=wish.request_id,
            epoch=wish.epoch,
            first=piece.first,
            n_past=piece.n_past,
            n_bytes=piece.n_bytes if piece.name else 0,
            name=piece.name,
            enqueued_unix_us=time.time_ns() // 1000,
            is_caught_up=piece.is_caught_up,
            is_last=piece.is_last and not piece.error,
        )
        says_something = bool(packet.n_bytes or packet.is_caught_up or packet.is_last)
        if says_something and not export.out.offer(packet):
            self._drop(piece.name)
            piece = engine_pb2.EnginePiece(id=piece.id, error="more pieces wait than there may be")
        elif piece.name:
            export.n_bytes += piece.n_bytes
            export.n_past = piece.n_past
        if piece.is_last or piece.error:
            export.error = piece.error
            export.is_over.set()

    def on_engine_death(self) -> None:
        """The engine is gone, with all of its state."""
        for export in self._exports.values():
            export.error = "the source's engine died"
            export.is_over.set()

    async def _until_resident(self, key: str, epoch: int, limit_s: float) -> None:
        """Raises Failed where the request is not here in time, or a later epoch of it is."""
        try:
            async with asyncio.timeout(min(limit_s, _MOST_WAIT_S)):
                while (here := self._engine.epoch_of(key)) < epoch:
                    if self._engine.has_finished(key, epoch):
                        raise Failed("refused", "the request has ended")
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            raise Failed("refused", f"the request did not come within {limit_s:g} s") from None
        if here > epoch:
            raise Failed("refused", f"epoch {epoch} is outdated: {here} is here")

    async def _export(self, key: str, wish: worker_pb2.KvWish, out: KvChannel) -> None:
        number = next(self._ids)
        export = self._exports[number] = _Export(wish, out)
        parent = self._engine.traceparent_of(key)
        span = self._spans.begin(names.KV_EXPORT, parent, {names.REQUEST_ID: wish.request_id})
        command = engine_pb2.EngineExport(
            id=number,
            key=key,
            token_ids=b"" if key else wish.token_ids,
            cache_scope="" if key else wish.cache_scope,
            known_tokens=wish.known_tokens,
        )
        self._engine.send(engine_pb2.EngineCommand(export_state=command))
        try:
            await export.is_over.wait()
            if export.error:
                raise Failed("engine", export.error)
        except BaseException as error:
            why = error.reason if isinstance(error, Failed) else "peer_gone"
            span.fail(why, str(error))
            over = engine_pb2.EngineExport(id=number, is_over=True)
            self._engine.send(engine_pb2.EngineCommand(export_state=over))
            raise
        finally:
            del self._exports[number]
            span.set({names.KV_BYTES: export.n_bytes, names.COMPUTED_TOKENS: export.n_past})
            span.end()

    def _drop(self, name: str) -> None:
        folder = self._folder()
        if name and folder is not None:
            folder.remove(name)
