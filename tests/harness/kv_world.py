"""Workers that fetch KV state from each other, with engines whose state is bytes in files."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import struct
import tempfile
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.traces import Caller
from prometheus_client import CollectorRegistry

from inferflux.common.bus import Bus
from inferflux.common.process.tls import TlsFiles
from inferflux.common.tracing import OFF, Tracer
from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.metrics import KvMetrics, WorkerMetrics
from inferflux.worker.model.spans import WorkerSpans
from inferflux.worker.model.worker_state import WorkerState
from inferflux.worker.transfer.settings import KvSettings
from inferflux.worker.transfer.transfers import KvProcess, Transfers

CALLER = Caller()
TENANT, REQUEST, EPOCH = "acme", "r1", 3
KEY = f"{TENANT}.{REQUEST}"
# What the engine lets lie unread.
MOST_UNREAD_BYTES = 64 << 20
_HEADER = struct.Struct("<IIQI")


@dataclass(frozen=True)
class Piece:
    """The state of the positions [first, n_past)."""

    first: int
    n_past: int
    data: bytes

    def to_file(self) -> bytes:
        return _HEADER.pack(self.first, self.n_past, len(self.data), zlib.crc32(self.data)) + self.data


def pieces_of(*sizes: int, tokens: int = 256) -> list[Piece]:
    """Pieces with these numbers of bytes, of random content."""
    return [Piece(i * tokens, (i + 1) * tokens, secrets.token_bytes(n)) for i, n in enumerate(sizes)]


class PieceEngine:
    """The `EngineSide` of a model whose state is a list of pieces.

    Attributes:
        epochs: of the requests that are resident.
        exported: what was asked for; `over` those that were ended.
        got: pieces that were imported; `imports` all commands.
        may_read: set while it reads what it is given.
        holds_back: exports send the pieces before this one, and no more; None: all of them.
        cached: it says that it has these first tokens of what is to come.
        most_unread: bytes that lay unread at once, of this engine's exports.
    """

    digest = "digest"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pieces: Sequence[Piece] = ()
        self.epochs = {KEY: EPOCH}
        self.exported: list[engine_pb2.EngineExport] = []
        self.over: list[int] = []
        self.got: list[Piece] = []
        self.imports: list[engine_pb2.EngineImport] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.holds_back: int | None = None
        self.cached = 0
        self.most_unread = 0
        self.transfers: Transfers | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._given: asyncio.Queue[engine_pb2.EngineImport] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    def key_of(self, tenant: str, request_id: str) -> str:
        return f"{tenant}.{request_id}"

    def epoch_of(self, key: str) -> int:
        return self.epochs.get(key, 0)

    def has_finished(self, _key: str, _epoch: int) -> bool:
        return False

    def traceparent_of(self, _key: str) -> str:
        return CALLER.traceparent

    @property
    def is_released(self) -> bool:
        """True if no request waits for an import any more."""
        last = {command.id: command.is_over for command in self.imports}
        return all(last.values())

    @property
    def files(self) -> list[Path]:
        return [*self.folder.iterdir()] if self.folder.exists() else []

    def send(self, command: engine_pb2.EngineCommand) -> None:
        if command.HasField("export_state"):
            export = command.export_state
            if export.is_over:
                self.over.append(export.id)
                if task := self._tasks.pop(export.id, None):
                    task.cancel()
            else:
                self.exported.append(export)
                self._tasks[export.id] = asyncio.create_task(self._export(export))
        elif command.HasField("import_state"):
            self.imports.append(command.import_state)
            self._given.put_nowait(command.import_state)

    async def close(self) -> None:
        for task in (*self._tasks.values(), self._reader):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), self._reader, return_exceptions=True)

    def report(self, **fields: object) -> None:
        assert self.transfers is not None
        self.transfers.on_step(engine_pb2.StepReport(**fields))  # type: ignore[arg-type]

    async def _export(self, export: engine_pb2.EngineExport) -> None:
        wanted = [piece for piece in self.pieces if piece.n_past > export.known_tokens]
        unread: dict[Path, int] = {}
        for piece in wanted[: self.holds_back]:
            while unread and sum(unread.values()) + len(piece.data) > MOST_UNREAD_BYTES:
                await asyncio.sleep(0.001)
                unread = {path: n for path, n in unread.items() if path.exists()}
            path = self.folder / f"out-{secrets.token_hex(8)}"
            data = piece.to_file()
            path.write_bytes(data)
            unread[path] = len(data)
            self.most_unread = max(self.most_unread, sum(unread.values()))
            is_last = piece is self.pieces[-1]
            told = engine_pb2.EnginePiece(
                id=export.id,
                name=path.name,
                first=piece.first,
                n_past=piece.n_past,
                n_bytes=len(data),
                is_caught_up=is_last,
                is_last=is_last,
            )
            self.report(pieces=[told])
            await asyncio.sleep(0)

    async def _read(self) -> None:
        while True:
            command = await self._given.get()
            if command.token_ids:
                self.report(imported=[engine_pb2.EngineImported(id=command.id, tokens=self.cached)])
            if not command.path:
                continue
            await self.may_read.wait()
            path = Path(command.path)
            data = path.read_bytes()
            path.unlink()
            first, n_past, n, crc = _HEADER.unpack_from(data.ljust(_HEADER.size))
            body = data[_HEADER.size :]
            news = engine_pb2.EngineImported(id=command.id, tokens=command.n_past)
            if len(body) != n or zlib.crc32(body) != crc:
                news = engine_pb2.EngineImported(id=command.id, error="a piece was not taken: corrupt")
            else:
                self.got.append(Piece(first, n_past, body))
            self.report(imported=[news])


@dataclass
class KvWorker:
    """A worker, as far as its KV state goes."""

    engine: PieceEngine
    transfers: Transfers
    process: KvProcess
    root: Path
    state: WorkerState
    registry: CollectorRegistry
    told: list[scheduler_pb2.StateTaken] = field(default_factory=list)

    @property
    def source(self) -> scheduler_pb2.KvSource:
        found = self.transfers.source()
        assert found is not None
        return found

    def take(
        self, source: scheduler_pb2.KvSource, *, epoch: int = EPOCH, limit_ms: int = 20_000, **fields: Any
    ) -> None:
        """Fetch the state of the request from another worker."""
        origin = worker_pb2.StateOrigin(source=source, epoch=epoch)
        command = worker_pb2.TakeState(tenant=TENANT, request_id=REQUEST, origin=origin, limit_ms=limit_ms)
        command.traceparent = CALLER.traceparent
        command.MergeFrom(worker_pb2.TakeState(**fields))
        self.transfers.take(command)

    def drop(self, *, epoch: int = EPOCH) -> None:
        """The request does not come."""
        self.transfers.drop(worker_pb2.DropRequest(tenant=TENANT, request_id=REQUEST, epoch=epoch))

    async def until_told(self) -> scheduler_pb2.StateTaken:
        """What the scheduler is told of it."""
        await until(lambda: bool(self.told))
        return self.told[0]

    async def until_idle(self) -> None:
        """Return when nothing is fetched any more."""

        def is_idle() -> bool:
            status = self.transfers.status()
            return status is not None and not status.under_way

        await until(is_idle)

    async def close(self) -> None:
        await self.transfers.close()
        await self.process.aclose()
        await self.engine.close()


async def until(is_true: object, limit_s: float = 45) -> None:
    async with asyncio.timeout(limit_s):
        while not is_true():  # type: ignore[operator]
            await asyncio.sleep(0.005)


@asynccontextmanager
async def short_folder() -> AsyncIterator[Path]:
    """A folder in shared memory, whose path is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="kv", dir="/dev/shm"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


async def kv_worker(
    bus: Bus, root: Path, transport: str, *, tls: TlsFiles | None = None, tracer: Tracer = OFF
) -> KvWorker:
    """A worker whose exchange is `root`; those of one folder name the same."""
    pieces = root / "exchange" / "pieces"
    (root / "exchange").mkdir(parents=True, exist_ok=True)
    (root / "exchange" / "lock").touch()
    files = {} if tls is None else {"tls_cert": tls.cert, "tls_key": tls.key, "tls_ca": tls.ca}
    settings = KvSettings(kv_transport=transport, **files)  # type: ignore[arg-type]
    process = KvProcess(settings)
    await process.listen()
    state = WorkerState(f"w-{secrets.token_hex(4)}", secrets.token_hex(16))
    engine = PieceEngine(pieces)
    told: list[scheduler_pb2.StateTaken] = []

    async def tell(news: scheduler_pb2.StateTaken) -> None:
        told.append(news)

    registry = CollectorRegistry()
    metrics: KvMetrics = WorkerMetrics(registry).kv
    spans = WorkerSpans(tracer, state.worker_id)
    transfers = Transfers(process, bus, state, engine, spans, metrics, tell)
    engine.transfers = transfers
    await transfers.listen()
    config = engine_pb2.EngineConfig(disk_path=str(root), disk_bytes=1 << 30)
    await transfers.on_ready(f"machine:{root}", config)
    return KvWorker(engine, transfers, process, root, state, registry, told)


@asynccontextmanager
async def closing(*workers: KvWorker) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for worker in workers:
            with contextlib.suppress(Exception):
                await worker.close()
