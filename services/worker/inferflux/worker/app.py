"""Builds a worker and runs it until it is told to leave."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

from inferflux.common import logs
from inferflux.common.bus import Bus
from inferflux.common.errors import Internal, InvalidArgument
from inferflux.common.lifecycle import Shutdown
from inferflux.common.probe import Probe
from inferflux.common.tracing import OFF, Tracer, open_tracer
from inferflux.v1 import engine_pb2, model_pb2, scheduler_pb2

from . import request_log
from .emit import Emitter
from .engine_host import EngineHost, EngineLoadError
from .intake import Intake
from .metrics import WorkerMetrics
from .model_file import ModelFile, ModelFileError, probe_model_file
from .presence import Presence
from .residents import Limits, ResidentTable
from .settings import WorkerSettings
from .spans import WorkerSpans
from .watchdog import Watchdog
from .witness import Oath, witness

_WATCH_INTERVAL_S = 0.5

log = logs.get("worker")


class Worker:
    """One worker: its table, its engine, and its place on the bus."""

    def __init__(
        self, settings: WorkerSettings, model: ModelFile, bus: Bus, probe: Probe, tracer: Tracer
    ) -> None:
        self._settings = settings
        self._model = model
        self._bus = bus
        self._probe = probe
        self._table = ResidentTable()
        incarnation = uuid.uuid4().hex
        self._oath = Oath.of(settings.nats_url, settings.id, incarnation)
        self._presence = Presence(
            bus=bus,
            table=self._table,
            worker_id=settings.id,
            incarnation=incarnation,
            card=_card(settings, model),
            interval_s=settings.heartbeat_interval_s,
            swap_bytes=settings.swap_bytes,
        )
        self._metrics = WorkerMetrics(
            settings.served_name, kv_cells=settings.kv_cells, flash_attention=settings.flash_attention
        )
        self._spans = WorkerSpans(tracer, settings.id)
        self._emitter = Emitter(bus, self._table, self._spans, settings.id, incarnation)
        self._host = EngineHost(
            _engine_config(settings),
            self._on_report,
            self._on_engine_death,
            load_limit_s=settings.load_limit_s,
        )
        self._watchdog = Watchdog(settings.stuck_s, _WATCH_INTERVAL_S)
        self._intake = Intake(bus, self._table, self._spans, self._host, self._presence, self._metrics.bad)

    async def run(self, shutdown: Shutdown) -> None:
        """Serve until `shutdown`, then drain.

        Raises:
            InvalidArgument: the model could not be loaded.
        """
        with witness(self._oath):
            await self._run(shutdown)

    async def _run(self, shutdown: Shutdown) -> None:
        self._probe.set_ready("engine", False, "loading the model")
        self._bus.on_disconnect(self._emitter.on_disconnect)
        self._bus.on_reconnect(self._on_reconnect)
        await self._offer_tokenizer()
        await self._intake.listen()
        beating = asyncio.create_task(self._presence.run())
        hosting = asyncio.create_task(self._host.run())
        watching = asyncio.create_task(self._watch())
        repeating = asyncio.create_task(self._emitter.repeat_refused())
        leaving = asyncio.create_task(shutdown.wait())
        try:
            own = {beating, hosting, watching, repeating}
            await asyncio.wait({*own, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                await _first_failure(*own)
            await self._drain()
        finally:
            for task in (beating, watching, repeating, leaving):
                task.cancel()
            await self._host.stop()
            await asyncio.gather(beating, hosting, watching, repeating, leaving, return_exceptions=True)

    async def _watch(self) -> None:
        """Kill an engine that should make steps and makes none; it is then started again."""
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            if self._watchdog.is_stuck(has_running=self._table.has_running):
                self._watchdog.progressed()
                self._metrics.engine_was_stuck()
                self._host.kill(f"the engine made no step for {self._settings.stuck_s:g} s and was killed")

    async def _drain(self) -> None:
        """Finish what runs within the limit, and tell the scheduler what is left."""
        self._probe.set_ready("engine", False, "draining")
        self._presence.is_leaving = True
        await self._presence.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_limit_s):
                await self._emitter.until_none_runs()
        left = self._table.clear()
        for resident in left:
            self._spans.gave_up(resident, "worker_left")
            request_log.left(resident, "worker_left")
        await self._emitter.tell_leaving(left)
        await self._bus.flush()
        log.info("drained", handed_over=len(left))

    async def _offer_tokenizer(self) -> None:
        """Put the tokenizer where every gateway finds it by the model's digest."""
        await self._bus.put_object(self._model.digest, self._model.tokenizer)

    async def _on_reconnect(self) -> None:
        await self._emitter.republish()
        await self._presence.beat()
        await self._offer_tokenizer()

    async def _on_report(self, report: engine_pb2.EngineReport) -> None:
        if report.HasField("step"):
            self._watchdog.progressed()
            await self._emitter.on_step(report.step)
            self._metrics.observe(report.step.stats)
            self._presence.observe(report.step.stats)
        elif report.HasField("ready"):
            await self._on_ready(report.ready)

    async def _on_ready(self, ready: engine_pb2.EngineReady) -> None:
        self._table.limits = Limits(
            slots=ready.slots,
            sequences=ready.sequences,
            kv_cells=ready.kv_cells,
            context_length=ready.context_length,
            vocabulary_size=ready.vocabulary_size,
        )
        card = self._presence.card
        card.context_length = ready.context_length
        card.vocabulary_size = ready.vocabulary_size
        card.parameters = ready.parameters
        card.has_chat_template = ready.has_chat_template
        self._metrics.kv_cells = ready.kv_cells
        if ready.context_length < self._model.context_length and not self._settings.context_length:
            log.warning(
                "the context is shorter than the model's: the KV cache holds no more",
                context_length=ready.context_length,
                model_context_length=self._model.context_length,
            )
        if ready.prefill_context_error:
            log.warning(
                "the prefill context is off: long prompts are chunked in mixed batches",
                why=ready.prefill_context_error,
            )
        log.info(
            "ready",
            model=card.name,
            slots=ready.slots,
            kv_cells=ready.kv_cells,
            prefill_cells=ready.prefill_cells,
            context_length=ready.context_length,
        )
        self._probe.set_ready("engine", True)
        if self._presence.state == scheduler_pb2.WORKER_STATE_LOADING:
            await self._presence.become(scheduler_pb2.WORKER_STATE_READY)

    async def _on_engine_death(self, why: str) -> None:
        self._metrics.engine_died()
        self._probe.set_ready("engine", False, why)
        self._presence.engine = engine_pb2.StepStats()
        lost = self._table.clear()
        self._spans.lost(lost, why)
        for resident in lost:
            request_log.left(resident, "engine_died")
        if self._presence.state == scheduler_pb2.WORKER_STATE_READY:
            self._presence.state = scheduler_pb2.WORKER_STATE_LOADING
        await self._emitter.tell_engine_died(lost, why)
        await self._presence.beat()


async def _first_failure(*tasks: asyncio.Task[None]) -> None:
    """Raise what ended one of the tasks that never end by themselves."""
    for task in tasks:
        if task.done():
            try:
                task.result()
            except EngineLoadError as error:
                raise InvalidArgument(str(error), field="INFERFLUX_WORKER_MODEL_PATH") from None
    raise Internal("a task of the worker ended unasked")


def _card(settings: WorkerSettings, model: ModelFile) -> model_pb2.ModelCard:
    return model_pb2.ModelCard(
        name=settings.served_name,
        digest=model.digest,
        architecture=model.architecture,
        size_bytes=model.size_bytes,
    )


def _engine_config(settings: WorkerSettings) -> engine_pb2.EngineConfig:
    return engine_pb2.EngineConfig(
        model_path=str(settings.model_path),
        worker_id=settings.id,
        slots=settings.slots,
        sequences=settings.all_sequences,
        swap_bytes=settings.swap_bytes,
        kv_cells=settings.kv_cells,
        prefill_cells=settings.prefill_cells,
        context_length=settings.context_length,
        threads=settings.threads,
        batch_tokens=settings.batch_tokens,
        gpu_layers=settings.gpu_layers,
        flash_attention=settings.flash_attention,
        max_itl_factor=settings.max_itl_factor,
        step_limit_s=settings.step_limit_s,
    )


async def serve(settings: WorkerSettings, shutdown: Shutdown) -> None:
    """Run a worker from its settings.

    Raises:
        InferFluxError: the model, NATS or the metrics port cannot be used.
    """
    try:
        model = await probe_model_file(settings.model_path)
    except ModelFileError as error:
        raise InvalidArgument(str(error), field="INFERFLUX_WORKER_MODEL_PATH") from None
    probe = Probe(settings.metrics_listen)
    tracer = OFF
    try:
        tracer = open_tracer(settings, "worker")
        bus = await Bus.connect(settings.nats_url, name=f"worker-{settings.id}")
        try:
            await bus.ensure_streams(settings.stream_limits)
            await Worker(settings, model, bus, probe, tracer).run(shutdown)
        finally:
            await bus.close()
    finally:
        await tracer.close()
        probe.close()
