"""Parts that a model's worker is put together from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from inferflux.common.bus import Bus
from inferflux.common.tracing import Tracer
from inferflux.v1 import engine_pb2
from inferflux.worker.files.model_file import ModelFile
from inferflux.worker.metrics import WorkerMetrics
from inferflux.worker.model.emit import Emitter
from inferflux.worker.model.model_host import ModelHost
from inferflux.worker.model.model_options import MakeEngine, ModelOptions
from inferflux.worker.model.residents import request_key
from inferflux.worker.model.spans import WorkerSpans
from inferflux.worker.null import core, engine
from inferflux.worker.processes.engine_process import SpareEngine
from inferflux.worker.settings import WorkerSettings
from inferflux.worker.transfer.transfers import KvProcess

if TYPE_CHECKING:
    from redis.asyncio import Redis


@dataclass(frozen=True, slots=True)
class Process:
    """Parts that the models of one process share."""

    settings: WorkerSettings
    bus: Bus
    redis: Redis
    emitter: Emitter
    tracer: Tracer
    metrics: WorkerMetrics
    engines: SpareEngine
    kv: KvProcess


class ModelSide:
    """The `EngineSide` of a `ModelHost`.

    Args:
        model: is bound later: it is made with the transfers.
    """

    key_of = staticmethod(request_key)

    def __init__(self, digest: str, spans: WorkerSpans) -> None:
        self.digest = digest
        self._spans = spans
        self._model: ModelHost | None = None

    def bind(self, model: ModelHost) -> None:
        self._model = model

    def epoch_of(self, key: str) -> int:
        return self._model.residents.epoch_of(key) if self._model is not None else 0

    def has_finished(self, key: str, epoch: int) -> bool:
        return self._model is not None and self._model.residents.has_finished(key, epoch)

    def traceparent_of(self, key: str) -> str:
        return self._spans.traceparent_of(key, self.epoch_of(key))

    def send(self, command: engine_pb2.EngineCommand) -> None:
        if self._model is not None:
            self._model.send(command)


def null_engine(settings: WorkerSettings, file: ModelFile, options: ModelOptions) -> MakeEngine:
    """A null engine for a model."""
    return partial(
        engine.NullEngine,
        options.engine,
        core.Rates(settings.null_step_s),
        kv_cells=options.kv_cells,
        vocabulary_size=file.facts.vocabulary_size,
        context_length=file.context_length,
    )
