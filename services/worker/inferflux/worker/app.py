"""Builds a worker and runs it until it is told to leave."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inferflux.api.speculation import SOURCES
from inferflux.common import logs, store
from inferflux.common.bus import Bus
from inferflux.common.errors import Internal, InvalidArgument
from inferflux.common.lifecycle import Shutdown
from inferflux.common.prefixes.hashes import PrefixHasher
from inferflux.common.prefixes.index import Holder
from inferflux.common.probe import Probe
from inferflux.common.tasks import cancel_all
from inferflux.common.tracing import OFF, Tracer, open_tracer
from inferflux.v1 import engine_pb2

from .emit import Emitter
from .engine_host import EngineLoadError
from .events import WorkerEvents
from .heartbeat import Heartbeat
from .intake import Intake
from .metrics import WorkerMetrics
from .model_file import ModelFile, ModelFileError, probe_model_file
from .model_host import ModelHost, ModelOptions, Shared
from .prefix_reports import PrefixReports
from .settings import WorkerSettings
from .spans import WorkerSpans
from .witness import Oath, witness
from .worker_state import WorkerState

if TYPE_CHECKING:
    from redis.asyncio import Redis

# The part of the drain limit that writing KV state to disk may take, and what requests leave it at least.
_FLUSH_PART = 0.25
_SHORTEST_FLUSH_S = 1.0

log = logs.get("worker")


class Worker:
    """One worker: a model, and the worker's place on the bus."""

    def __init__(
        self,
        settings: WorkerSettings,
        file: ModelFile,
        bus: Bus,
        redis: Redis,
        probe: Probe,
        tracer: Tracer,
    ) -> None:
        self._settings = settings
        self._file = file
        self._bus = bus
        self._probe = probe
        self._state = WorkerState(settings.id, incarnation=uuid.uuid4().hex, pool=settings.pool)
        self._oath = Oath.of(settings.nats_url, settings.id, self._state.incarnation, settings.client_tls)
        self._events = WorkerEvents(bus, self._state)
        self._emitter = Emitter(bus, self._kept_chunks)
        metrics = WorkerMetrics()
        model_metrics = metrics.of(settings.served_name, flash_attention=settings.flash_attention)
        self._cache_reports = PrefixReports(
            redis,
            Holder(settings.id, self._state.incarnation),
            partial(PrefixHasher, model_digest=file.digest, block_tokens=settings.cache_block_tokens),
            model_metrics,
            report_again=lambda: self._model.report_cache(),
        )
        self._model = ModelHost(
            _model_options(settings, file.digest),
            file,
            model_metrics,
            Shared(
                self._emitter, self._events, WorkerSpans(tracer, settings.id), on_change=self._on_model_change
            ),
            self._cache_reports,
        )
        self._heartbeat = Heartbeat(bus, self._state, self._model, settings.heartbeat_interval_s)
        self._intake = Intake(bus, self._state, self._model, self._heartbeat, metrics.bad)

    async def run(self, shutdown: Shutdown) -> None:
        """Serve until `shutdown`, then drain.

        Raises:
            InvalidArgument: the model could not be loaded.
        """
        with witness(self._oath):
            await self._run(shutdown)

    async def _run(self, shutdown: Shutdown) -> None:
        self._update_readiness()
        self._bus.on_disconnect(self._emitter.on_disconnect)
        self._bus.on_reconnect(self._on_reconnect)
        await self._offer_tokenizer()
        await self._intake.listen()
        own = {
            asyncio.create_task(work)
            for work in (
                self._heartbeat.run(),
                self._model.run(),
                self._emitter.repeat_refused(),
                self._cache_reports.run(),
            )
        }
        leaving = asyncio.create_task(shutdown.wait())
        try:
            await asyncio.wait({*own, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                await _first_failure(*own)
            await self._drain()
        finally:
            await self._model.stop()
            await cancel_all([*own, leaving])
            await self._cache_reports.leave()

    async def _drain(self) -> None:
        """Let requests finish within the limit, tell the scheduler what is left, keep what was computed."""
        began_s = time.monotonic()
        self._state.leave()
        self._update_readiness()
        await self._heartbeat.beat()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_limit_s):
                await self._model.until_none_runs()
        left = self._model.hand_over()
        await self._events.left(left)
        await self._bus.flush()
        log.info("drained", handed_over=len(left))
        limit_s = self._settings.drain_limit_s
        await self._model.flush(flush_limit_s(limit_s, limit_s - (time.monotonic() - began_s)))

    def _kept_chunks(self) -> dict[str, list[bytes]]:
        return self._model.residents.kept_chunks(time.monotonic())

    def _update_readiness(self) -> None:
        missing = "draining" if self._state.is_leaving else self._model.why_not_ready
        self._probe.set_ready("engine", not missing, missing)

    async def _offer_tokenizer(self) -> None:
        """Put the tokenizer where every gateway finds it by the model's digest."""
        await self._bus.put_object(self._file.digest, self._file.tokenizer)

    async def _on_reconnect(self) -> None:
        await self._emitter.republish()
        await self._heartbeat.beat()
        await self._offer_tokenizer()

    async def _on_model_change(self) -> None:
        self._update_readiness()
        await self._heartbeat.beat()


def flush_limit_s(drain_limit_s: float, left_s: float) -> float:
    """Seconds that KV state may be written to disk at the end of a drain (pure): those that are left of its
    limit, but no more than a part of it; and a little if requests took all of it."""
    return min(max(left_s, _SHORTEST_FLUSH_S), drain_limit_s * _FLUSH_PART)


async def _first_failure(*tasks: asyncio.Task[None]) -> None:
    """Raise what ended one of the tasks that never end by themselves."""
    for task in tasks:
        if task.done():
            try:
                task.result()
            except EngineLoadError as error:
                raise InvalidArgument(str(error), field="INFERFLUX_WORKER_MODEL_PATH") from None
    raise Internal("a task of the worker ended unasked")


def _model_options(settings: WorkerSettings, digest: str) -> ModelOptions:
    return ModelOptions(
        name=settings.served_name,
        engine=_engine_config(settings, digest),
        load_limit_s=settings.load_limit_s,
        stuck_s=settings.stuck_s,
    )


def _engine_config(settings: WorkerSettings, digest: str) -> engine_pb2.EngineConfig:
    return engine_pb2.EngineConfig(
        model_path=str(settings.model_path),
        worker_id=settings.id,
        slots=settings.slots,
        sequences=settings.all_sequences,
        host_bytes=settings.host_bytes,
        host_eviction=settings.host_eviction,
        disk_path="" if settings.disk_path is None else str(settings.disk_path),
        disk_bytes=settings.disk_bytes,
        disk_prompt_tokens=settings.disk_prompt_tokens,
        model_digest=digest,
        kv_cells=settings.kv_cells,
        kv_bytes=settings.kv_bytes,
        kv_type_k=settings.kv_type_k,
        kv_type_v=settings.kv_type_v,
        prefill_cells=settings.prefill_cells,
        context_length=settings.context_length,
        threads=settings.threads,
        batch_tokens=settings.batch_tokens,
        gpu_layers=settings.gpu_layers,
        flash_attention=settings.flash_attention,
        max_itl_factor=settings.max_itl_factor,
        step_limit_s=settings.step_limit_s,
        prefix_cache=settings.prefix_cache,
        speculation=SOURCES[settings.speculation],
        draft_model_path="" if settings.draft_model is None else str(settings.draft_model),
    )


async def _probed(path: Path, variable: str, *, prefix: str = "") -> ModelFile:
    """Raises InvalidArgument where the file that `variable` names cannot be used."""
    try:
        return await probe_model_file(path)
    except ModelFileError as error:
        raise InvalidArgument(f"{prefix}{error}", field=variable) from None


async def serve(settings: WorkerSettings, shutdown: Shutdown) -> None:
    """Run a worker from its settings.

    Raises:
        InferFluxError: the model, NATS or the metrics port cannot be used.
    """
    file = await _probed(settings.model_path, "INFERFLUX_WORKER_MODEL_PATH")
    if settings.draft_model is not None:
        await _probed(
            settings.draft_model, "INFERFLUX_WORKER_DRAFT_MODEL", prefix="INFERFLUX_WORKER_DRAFT_MODEL is "
        )
    probe = Probe(settings.metrics_listen)
    tracer = OFF
    try:
        tracer = open_tracer(settings, "worker")
        bus = await Bus.connect(settings.nats_url, name=f"worker-{settings.id}", tls=settings.client_tls)
        try:
            await bus.ensure_streams(settings.stream_limits)
            connected = store.connect(settings.redis_url, tls=settings.client_tls)
            async with contextlib.aclosing(connected) as redis:
                await Worker(settings, file, bus, redis, probe, tracer).run(shutdown)
        finally:
            await bus.close()
    finally:
        await tracer.close()
        probe.close()
