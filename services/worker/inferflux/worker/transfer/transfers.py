"""The KV state that a worker sends to others, and fetches from them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferflux.common.bus import Bus
from inferflux.common.contract.callers.cache_scope import cache_scope_of, prefix_tokens
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background
from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.metrics import KvMetrics
from inferflux.worker.model.spans import WorkerSpans
from inferflux.worker.model.worker_state import WorkerState

from .engine_side import EngineSide
from .in_process import ChannelTransport
from .over_nats import NatsServer, NatsTransport
from .packets import MOST_LIMIT_MS, Failed
from .piece_files import PieceFolder
from .serving import Exports
from .settings import KvSettings
from .streams import ShmTransport, StreamServer, TcpTransport
from .taking import Fetched, Taking
from .transport import Door, Doors, KvTransport

_MOST_TAKINGS = 64
# Of a command that says nothing, and of a state that a batch names.
_LIMIT_MS = 30_000
_SWEEP_EVERY_S = 10.0
# For this time what was fetched is not fetched again for a request that comes.
_REMEMBERED_S = 30.0
_MOST_REMEMBERED = 1024
# Rates of less are noise.
_RATED_BYTES = 64 << 10

log = logs.get("worker.transfer")

StateTakenHandler = Callable[[scheduler_pb2.StateTaken], Coroutine[Any, Any, None]]
_Origin = tuple[str, int]


@dataclass(slots=True)
class _UnderWay:
    taking: Taking
    origin: _Origin


class KvProcess:
    """The models of this process that can be asked, and their server over TCP.

    Attributes:
        address: host:port of the server; empty: there is none.
        is_tls: whether it speaks TLS.
    """

    def __init__(self, settings: KvSettings) -> None:
        self.settings = settings
        self.doors = Doors()
        self.address = ""
        self.is_tls = False
        self._server = StreamServer(self.doors, tells_names=False)

    async def listen(self) -> None:
        """Listen, if that is asked for.

        Raises:
            InvalidArgument: the address or the certificate cannot be used; names the setting.
        """
        where = self.settings.kv_server
        if where:
            tls = self.settings.kv_server_tls
            listens_at = await self._server.listen(where, "INFERFLUX_KV_LISTEN", tls)
            self.address = self.settings.kv_address or listens_at
            self.is_tls = tls is not None

    async def aclose(self) -> None:
        """Listen no more."""
        await self._server.close()


class Transfers:
    """Transfers of one model's state.

    Args:
        kv: what the models of the process share.
        tell: publishes that a state is here, or will not come.
    """

    def __init__(
        self,
        kv: KvProcess,
        bus: Bus,
        state: WorkerState,
        engine: EngineSide,
        spans: WorkerSpans,
        metrics: KvMetrics,
        tell: StateTakenHandler,
    ) -> None:
        self._kv = kv
        self._state = state
        self._engine = engine
        self._spans = spans
        self._metrics = metrics
        self._tell = tell
        self._folder: PieceFolder | None = None
        self._exports = Exports(engine, spans, lambda: self._folder)
        self._door = Door(state.incarnation, self._exports.answer, lambda: self._folder, metrics.sent)
        transport = kv.settings.kv_transport
        carriers: list[KvTransport] = [
            ShmTransport(lambda: self._folder),
            TcpTransport(kv.settings.client_tls),
            NatsTransport(bus),
        ]
        if transport != "auto":
            carriers = [each for each in (*carriers, ChannelTransport(kv.doors)) if each.name == transport]
        self._carriers = carriers
        self._nats = NatsServer(bus, state.worker_id, kv.doors) if transport in ("auto", "nats") else None
        self._takes_names = transport in ("auto", "shm")
        self._socket: StreamServer | None = None
        self._background = Background()
        self._numbers = itertools.count(1)
        self._takings: dict[str, _UnderWay] = {}
        self._taken: OrderedDict[str, tuple[_Origin, float]] = OrderedDict()
        self._status = scheduler_pb2.KvTransfers()

    async def listen(self) -> None:
        """Let other workers ask."""
        self._kv.doors.open(self._door)
        self._background.start(self._sweep())
        if self._nats is not None:
            await self._nats.listen()

    async def finish(self, limit_s: float) -> None:
        """Return when all that others are sent is on its way, or after `limit_s` seconds."""
        await self._kv.doors.until_sent(self._door, limit_s)

    async def close(self) -> None:
        """End all transfers, and be asked no more."""
        self._kv.doors.close(self._door)
        await self._background.close()
        if self._nats is not None:
            await self._nats.close()
        if self._socket is not None:
            await self._socket.close()
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.socket_of(self._state.incarnation).unlink()
            self._folder.give_up()

    def source(self) -> scheduler_pb2.KvSource | None:
        """How others fetch state from here; None: they cannot."""
        if self._folder is None:
            return None
        return scheduler_pb2.KvSource(
            worker_id=self._state.worker_id,
            incarnation=self._state.incarnation,
            exchange=self._folder.name if self._socket is not None else "",
            address=self._kv.address,
            ticket=self._door.ticket,
            is_tls=self._kv.is_tls,
            takes_nats=self._nats is not None,
        )

    def status(self) -> scheduler_pb2.KvTransfers | None:
        """What was fetched, and is; None: nothing can be."""
        self._status.under_way = len(self._takings)
        return self._status if self._folder is not None else None

    async def on_ready(self, exchange: str, config: engine_pb2.EngineConfig) -> None:
        """The engine is ready.

        Args:
            exchange: names its exchange; empty: it has none.
        """
        if not exchange:
            self._folder = None
            return
        folder = PieceFolder(Path(config.disk_path) / "exchange", exchange, config.disk_bytes)
        try:
            folder.prepare()
            if self._takes_names:
                await self._listen_in(folder)
        except OSError as error:
            log.warning("KV state cannot go to other workers, or come from them", why=str(error))
            return
        self._folder = folder

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            if self._folder is not None:
                with contextlib.suppress(OSError):  # the next time
                    await asyncio.to_thread(self._folder.sweep)

    async def _listen_in(self, folder: PieceFolder) -> None:
        path = folder.socket_of(self._state.incarnation)
        if self._socket is not None and path.is_socket():
            return
        if self._socket is not None:  # the folder was removed, and made again
            await self._socket.close()
        self._socket = StreamServer(self._kv.doors, tells_names=True)
        try:
            await self._socket.listen_at(path)
        except OSError as error:  # the path is too long, say
            self._socket = None
            log.warning("workers of this machine cannot be told names of files", why=str(error))

    def take(self, command: worker_pb2.TakeState) -> None:
        """Fetch the state of a request that runs elsewhere; `tell` says what becomes of it."""
        origin = command.origin
        key = self._engine.key_of(command.tenant, command.request_id)
        wish = self._wish(command.tenant, command.request_id, origin, command.limit_ms)
        self._begin(
            Fetched(
                key,
                origin.source,
                wish,
                wish.limit_ms / 1000,
                command.traceparent,
                command.token_ids,
                command.cache_scope,
            )
        )

    def drop(self, command: worker_pb2.DropRequest) -> None:
        """Fetch no more of a request that does not come, unless it is of a later epoch, or a prefix that a
        request here begins with."""
        key = self._engine.key_of(command.tenant, command.request_id)
        under_way = self._takings.get(key)
        if under_way is not None and 0 < under_way.taking.wanted.wish.epoch <= command.epoch:
            self._supersede(key, under_way, "it is not wanted any more")

    def taken_up(self, item: worker_pb2.BatchItem) -> None:
        """A request becomes resident: what it begins with is fetched, unless that was done."""
        self._exports.request_came()
        if not item.HasField("state_from"):
            return
        request, origin = item.request, item.state_from
        key = self._engine.key_of(request.tenant, request.request_id)
        wish = self._wish(request.tenant, request.request_id, origin, _LIMIT_MS)
        tokens, scope = b"" if request.images else prefix_tokens(request), cache_scope_of(request)
        if not origin.epoch:
            wish.token_ids, wish.cache_scope = tokens, scope
        if origin.epoch or tokens:
            limit_s = _LIMIT_MS / 1000
            wanted = Fetched(key, origin.source, wish, limit_s, request.traceparent, tokens, scope)
            self._begin(wanted, is_told=False)
        if key not in self._takings:  # else it waits for what does not come
            self._release(key)

    def on_step(self, step: engine_pb2.StepReport) -> None:
        """Act on what the engine reports of its exports and imports."""
        for piece in step.pieces:
            self._exports.on_piece(piece)
        for news in step.imported:
            for each in list(self._takings.values()):
                if each.taking.number == news.id:
                    each.taking.on_imported(news)

    def on_engine_death(self) -> None:
        """The engine is gone, with all that it was sent."""
        self._exports.on_engine_death()
        self._taken.clear()
        for each in list(self._takings.values()):
            each.taking.end(Failed("engine", "the engine died"))
            each.taking.remove_given()

    def _wish(
        self, tenant: str, request_id: str, origin: worker_pb2.StateOrigin, limit_ms: int
    ) -> worker_pb2.KvWish:
        return worker_pb2.KvWish(
            ticket=origin.source.ticket,
            tenant=tenant,
            request_id=request_id,
            epoch=origin.epoch,
            model_digest=self._engine.digest,
            exchange=self._folder.name if self._folder is not None else "",
            limit_ms=min(limit_ms or _LIMIT_MS, MOST_LIMIT_MS),
        )

    def _begin(self, wanted: Fetched, *, is_told: bool = True) -> None:
        """Begin to fetch, unless this is under way, or was done lately."""
        origin = (wanted.source.incarnation, wanted.wish.epoch)
        under_way = self._takings.get(wanted.key)
        if under_way is not None:
            if under_way.origin == origin:
                if is_told and under_way.taking.is_told:
                    news = _news_of(under_way.taking.wanted, under_way.taking.tokens)
                    self._background.start(self._tell(news))
                return
            self._supersede(wanted.key, under_way, "its state is fetched from elsewhere")
        if not is_told and self._was_taken(wanted.key, origin):
            return
        try:
            taking = self._new(wanted, is_told=is_told)
        except Failed as failure:
            self._note_failure(wanted, failure)
            if is_told:
                self._background.start(self._tell_failure(wanted, 0, failure))
            return
        self._takings[wanted.key] = _UnderWay(taking, origin)
        self._background.start(self._run(taking, origin, is_told=is_told))

    def _supersede(self, key: str, under_way: _UnderWay, why: str) -> None:
        """End a taking. The scheduler is told of the one that takes its place, if any, and of no other."""
        del self._takings[key]
        under_way.taking.end(Failed("superseded", why))

    def _new(self, wanted: Fetched, *, is_told: bool) -> Taking:
        """Raises Failed where it cannot be fetched."""
        if self._folder is None:
            raise Failed("unreachable", "this worker has no exchange")
        if len(self._takings) >= _MOST_TAKINGS:
            raise Failed("busy", f"{_MOST_TAKINGS} states are fetched already")
        carrier = next((each for each in self._carriers if each.reaches(wanted.source)), None)
        if carrier is None:
            raise Failed("unreachable", f"nothing carries state from {wanted.source.worker_id} to here")

        async def tell_caught_up(tokens: int) -> None:
            if is_told:
                await self._tell(_news_of(wanted, tokens))

        return Taking(
            next(self._numbers),
            wanted,
            carrier,
            self._folder,
            self._engine,
            self._metrics,
            self._spans,
            tell_caught_up,
        )

    async def _run(self, taking: Taking, origin: _Origin, *, is_told: bool) -> None:
        wanted = taking.wanted
        try:
            await taking.run()
            self._status.done += 1
            self._remember(wanted.key, origin)
        except Failed as failure:
            self._note_failure(wanted, failure)
            if is_told and not taking.is_told and self._is_under_way(taking):
                await self._tell_failure(wanted, taking.tokens, failure)
        finally:
            self._status.bytes += taking.n_bytes
            if taking.n_bytes >= _RATED_BYTES and taking.busy_s > 0:
                self._status.bytes_per_s = taking.n_bytes / taking.busy_s
            if self._is_under_way(taking):
                del self._takings[wanted.key]

    def _is_under_way(self, taking: Taking) -> bool:
        under_way = self._takings.get(taking.wanted.key)
        return under_way is not None and under_way.taking is taking

    def _note_failure(self, wanted: Fetched, failure: Failed) -> None:
        self._status.failed += 1
        self._metrics.failed(failure.reason)
        about = {"request": wanted.wish.request_id, "source": wanted.source.worker_id}
        log.info("KV state did not come", reason=failure.reason, why=str(failure), **about)

    async def _tell_failure(self, wanted: Fetched, tokens: int, failure: Failed) -> None:
        news = _news_of(wanted, tokens)
        news.error = str(failure)
        await self._tell(news)

    def _release(self, key: str) -> None:
        over = engine_pb2.EngineImport(id=next(self._numbers), key=key, is_over=True)
        self._engine.send(engine_pb2.EngineCommand(import_state=over))

    def _remember(self, key: str, origin: _Origin) -> None:
        self._taken[key] = (origin, time.monotonic())
        self._taken.move_to_end(key)
        while len(self._taken) > _MOST_REMEMBERED:
            self._taken.popitem(last=False)

    def _was_taken(self, key: str, origin: _Origin) -> bool:
        before, at_s = self._taken.get(key, (None, 0.0))
        return before == origin and time.monotonic() - at_s < _REMEMBERED_S


def _news_of(wanted: Fetched, tokens: int) -> scheduler_pb2.StateTaken:
    wish = wanted.wish
    return scheduler_pb2.StateTaken(
        tenant=wish.tenant, request_id=wish.request_id, epoch=wish.epoch, tokens=tokens
    )
