"""Options of a model, and the parts that it has from its worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from inferflux.v1 import engine_pb2, worker_pb2
from inferflux.worker.files.adapter_file import AdapterFile
from inferflux.worker.processes.engine_host import DeathHandler, ReportHandler, StartEngine
from inferflux.worker.processes.engine_process import EngineProcess

from .emit import Emitter
from .events import WorkerEvents
from .image_reads import ReadImage
from .spans import WorkerSpans


class EngineLink(Protocol):
    """Interface of an engine process to its model; `EngineHost` has it."""

    @property
    def pid(self) -> int | None: ...
    def send(self, command: engine_pb2.EngineCommand) -> None: ...
    def kill(self, why: str) -> None: ...
    async def run(self) -> None: ...
    async def stop(self) -> None: ...


class CacheReports(Protocol):
    """Receiver of what the engine has cached; `PrefixReports` is one."""

    def take_in(self, cached: Iterable[engine_pb2.CachedPrefix]) -> None: ...
    def clear(self) -> None: ...
    async def rewrite(self) -> None: ...


class StateTransfers(Protocol):
    """Transfers of the engine's state from and to other workers; `Transfers` are."""

    def taken_up(self, item: worker_pb2.BatchItem) -> None: ...
    def on_step(self, step: engine_pb2.StepReport) -> None: ...
    async def on_ready(self, exchange: str, config: engine_pb2.EngineConfig) -> None: ...
    def on_engine_death(self) -> None: ...


class NoTransfers:
    """Transfers of an engine whose state goes nowhere."""

    def taken_up(self, item: worker_pb2.BatchItem) -> None:
        pass

    def on_step(self, step: engine_pb2.StepReport) -> None:
        pass

    async def on_ready(self, exchange: str, config: engine_pb2.EngineConfig) -> None:
        pass

    def on_engine_death(self) -> None:
        pass


MakeEngine = Callable[[ReportHandler, DeathHandler], EngineLink]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is served.

    Attributes:
        name: what clients call it.
        engine: sent to every engine process of this model.
        load_limit_s: an engine that has not loaded the model by then is killed.
        stuck_s: an engine with running requests that makes no step for this long is killed; 0: never.
        adapters: that are loaded with the model.
        kv_cells: that it was counted with where `engine` leaves them open.
    """

    name: str
    engine: engine_pb2.EngineConfig
    load_limit_s: float
    stuck_s: float
    adapters: tuple[AdapterFile, ...] = ()
    kv_cells: int = 0


@dataclass(frozen=True, slots=True)
class Shared:
    """Parts that the models of a worker have in common.

    Attributes:
        on_change: awaited when a model becomes ready, or is ready no more.
        read_image: gives the object of this name from the bucket of images; raises InferFluxErrors.
        start_engine: see `EngineHost`.
        transfers: told of what they need to know.
    """

    emitter: Emitter
    events: WorkerEvents
    spans: WorkerSpans
    on_change: Callable[[], Awaitable[None]]
    read_image: ReadImage | None = None
    start_engine: StartEngine = EngineProcess.start
    transfers: StateTransfers = field(default_factory=NoTransfers)


@dataclass(slots=True)
class CacheCounts:
    """Prompts looked up, those of which a prefix was cached, its tokens, and prefixes that tiers had."""

    queries: int = 0
    hits: int = 0
    matched_tokens: int = 0
    host_hits: int = 0
    disk_hits: int = 0

    def add(self, stats: engine_pb2.StepStats) -> None:
        """Add those of one report."""
        self.queries += stats.prefix_queries
        self.hits += stats.prefix_hits
        self.matched_tokens += stats.prefix_matched_tokens
        self.host_hits += stats.host.hits
        self.disk_hits += stats.disk.hits
