"""A model that an engine process has: its requests, limits, rates and metrics."""

from __future__ import annotations

import asyncio
import time

from inferflux.common.contract.errors import Unavailable
from inferflux.common.contract.models.model_roles import embeds
from inferflux.common.contract.requests.images import id_of
from inferflux.common.prefixes.names import sharing_name
from inferflux.common.process import logs
from inferflux.common.process.machine.cpu_time import cpu_s
from inferflux.common.process.tasks import Background, is_set_within, until_next
from inferflux.v1 import device_pb2, engine_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.files.adapter_file import AdapterFile
from inferflux.worker.files.model_file import ModelFile
from inferflux.worker.metrics import ModelMetrics
from inferflux.worker.processes.engine_host import DeathHandler, EngineHost, ReportHandler

from . import engine_log, request_log
from .cache_clearing import CacheClearing
from .engine_pace import Rates, Watchdog
from .host_limit import HostLimit
from .image_reads import ImageReads
from .model_adapters import ModelAdapters
from .model_card import learn_card, new_card
from .model_options import CacheCounts, CacheReports, EngineLink, MakeEngine, ModelOptions, Shared
from .residents import Limits, Refused, Resident, ResidentTable, request_key

_WATCH_INTERVAL_S = 0.5
_GPUS = frozenset({device_pb2.DEVICE_KIND_GPU, device_pb2.DEVICE_KIND_GROUP})
# How long the step may take that the engine makes when it is told to flush.
_FLUSH_STEP_S = 1.0
_OF_EVERY_STEP = {engine_pb2.StepReport.DESCRIPTOR.fields_by_name[name] for name in ("emissions", "stats")}

log = logs.get("worker.model_host")


class ModelHost:
    """A model's engine process, the requests resident in it, its card, limits, rates and metrics.

    Attributes:
        card: what gateways and the scheduler learn of the model.
        residents: the requests that the engine has.
        host_limit: of the engine's host memory.
        stats: the engine's latest figures.
        kv_bytes: memory that keys and values of all KV cells take; 0 until it is known.
        exchange: names the folder through which its engine hands states over; empty: it has none.
        cache_counts: what was looked up in the engines' caches since the worker began.
        prefix_sharing, prefix_sharing_reason: as in `WorkerStatus`; unspecified before the model is loaded.
        device_context: what it runs on; None before it was loaded.
        why_not_ready: empty while it is ready.
    """

    def __init__(
        self,
        options: ModelOptions,
        file: ModelFile,
        metrics: ModelMetrics,
        shared: Shared,
        cache_reports: CacheReports,
        *,
        make_engine: MakeEngine | None = None,
    ) -> None:
        self._options = options
        self._file = file
        self._metrics = metrics
        self._shared = shared
        self._cache_reports = cache_reports
        self.card = new_card(options.name, options.engine.role, file)
        self.adapters = ModelAdapters(self.card, options.engine, metrics)
        for adapter in options.adapters:
            self.adapters.take(adapter)
        self.residents = ResidentTable()
        self.host_limit = HostLimit(options.engine.host_bytes)
        self.rates = Rates()
        self.stats = engine_pb2.StepStats()
        self.kv_bytes = 0
        self.exchange = ""
        self.cache_counts = CacheCounts()
        self.prefix_sharing = scheduler_pb2.PREFIX_SHARING_UNSPECIFIED
        self.prefix_sharing_reason = ""
        self.device_context: device_pb2.DeviceContext | None = None
        self.why_not_ready = "loading the model"
        self._is_first_engine = True
        self._watchdog = Watchdog(options.stuck_s, _WATCH_INTERVAL_S)
        self._engine = (make_engine or self._engine_process)(self.on_report, self.on_engine_death)
        self._clearing = CacheClearing(self._engine.send)
        self._has_news = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushes_requests = False
        self._images = ImageReads(options.name, shared.read_image, self._engine.send)

    def _engine_process(self, on_report: ReportHandler, on_death: DeathHandler) -> EngineLink:
        return EngineHost(
            self._options.engine,
            on_report,
            on_death,
            load_limit_s=self._options.load_limit_s,
            start=self._shared.start_engine,
        )

    @property
    def name(self) -> str:
        return self._options.name

    @property
    def limits(self) -> Limits | None:
        """Limits that the engine reported when it was ready; None while it is not."""
        return self.residents.limits

    @property
    def engine_config(self) -> engine_pb2.EngineConfig:
        """Configuration of the next engine."""
        return self._options.engine

    @property
    def is_ready(self) -> bool:
        return self.limits is not None

    @property
    def kv_types(self) -> str:
        """Types of keys and values."""
        engine = self._options.engine
        keys, values = engine.kv_type_k or "f16", engine.kv_type_v or "f16"
        return keys if keys == values else f"{keys}, {values}"

    @property
    def swap_bytes(self) -> int:
        """Most host memory for the state of swapped requests, and of cold prefixes."""
        return self.host_limit.now

    @property
    def has_host_tier(self) -> bool:
        """True if its engine keeps KV state in host memory."""
        return not embeds(self._options.engine.role)

    @property
    def gpu_bytes(self) -> int:
        """Bytes that it has on GPUs of this machine, by llama.cpp; 0 until it is known."""
        devices = self.device_context.devices if self.device_context is not None else ()
        return sum(
            d.weights_bytes + d.kv_bytes + d.compute_bytes
            for d in devices
            if d.kind in _GPUS and not d.endpoint
        )

    async def run(self) -> None:
        """Keep an engine running until `stop`.

        Raises:
            EngineLoadError: the model could not be loaded, or not again: see `EngineHost.run`.
        """
        background = Background()
        background.start(self._watch())
        try:
            await self._engine.run()
        finally:
            await background.close()

    async def flush(self, limit_s: float, *, requests_only: bool = False) -> None:
        """Have the engine put what is worth keeping on disk, if it has one, within `limit_s`. It takes no
        request any more.

        Args:
            requests_only: have it leave the state of its requests to others, and nothing else.
        """
        engine = self._options.engine
        has_folder = engine.disk_path and engine.disk_bytes and (requests_only or not engine.is_exchange_only)
        if not (has_folder and limit_s > 0) or self.why_not_ready:
            return
        self._flushed.clear()
        self._flushes_requests = requests_only
        flush = engine_pb2.EngineFlush(limit_ms=int(limit_s * 1000), requests_only=requests_only)
        self._engine.send(engine_pb2.EngineCommand(flush=flush))
        if not await is_set_within(self._flushed, limit_s + _FLUSH_STEP_S):
            log.warning("KV state was not written in time", model=self.name, limit_s=limit_s)

    async def stop(self) -> None:
        """End the engine; its resident requests are gone."""
        await self._engine.stop()
        await self._images.close()

    def take_up(self, item: worker_pb2.BatchItem) -> None:
        """Make a request resident, and have it run.

        Raises:
            Refused: it cannot be; nothing has changed.
        """
        digest = item.request.adapter_digest
        if digest and not self.adapters.has(digest):
            why = f"the adapter {item.request.adapter!r} is not loaded here"
            raise Refused(worker_pb2.REFUSAL_REASON_NOT_READY, why)
        resident, replaced = self.residents.admit(item)
        if replaced is not None:
            self._discard(replaced, "replaced")
        self._shared.spans.take_up(resident, item)
        request_log.taken_up(resident)
        self._shared.transfers.taken_up(item)
        self.send(engine_pb2.EngineCommand(start=item))

    def send(self, command: engine_pb2.EngineCommand) -> None:
        """Tell the engine; without one it is lost."""
        self._engine.send(command)

    def resume(self, item: worker_pb2.BatchItem) -> None:
        """Have a resident request run again.

        Raises:
            Refused: it cannot; nothing has changed.
        """
        resident = self.residents.resume(item)
        if resident is None:
            return
        self._shared.spans.resumed(resident, item.slot)
        request_log.resumed(resident)
        resume = engine_pb2.EngineResume(
            key=resident.key,
            epoch=resident.epoch,
            slot=item.slot,
            token_budget=item.token_budget,
            urgency_key=item.urgency_key,
            run=resident.run,
        )
        self._engine.send(engine_pb2.EngineCommand(resume=resume))

    def deschedule(self, wanted: worker_pb2.Deschedule) -> None:
        """End a run, if that request is resident."""
        resident = self.residents.deschedule(wanted)
        if resident is not None:
            deschedule = engine_pb2.EngineDeschedule(key=resident.key, epoch=resident.epoch, run=resident.run)
            self._engine.send(engine_pb2.EngineCommand(deschedule=deschedule))

    def drop(self, command: worker_pb2.DropRequest) -> None:
        """Be rid of a request without a terminal chunk, if it is resident."""
        dropped = self.residents.drop(request_key(command.tenant, command.request_id), command.epoch)
        if dropped is not None:
            self._discard(dropped, "dropped", leaves_state=command.leaves_state)

    def cancel(self, notice: scheduler_pb2.CancelNotice, now: float) -> None:
        """End a request with a terminal chunk, now or when its attempt comes."""
        key = request_key(notice.tenant, notice.request_id)
        resident = self.residents.cancel(key, notice.attempt_id, now)
        if resident is not None:
            self._send_cancel(resident.key, is_silent=False)

    async def clear_cache(self, clear: scheduler_pb2.ClearCache) -> scheduler_pb2.CacheCleared:
        """Have the engine give cached prefixes up, and the index written anew. Requests keep what they have.

        Raises:
            Unavailable: the engine is not ready, died, or did not answer in time.
        """
        if not self.is_ready:
            raise Unavailable(f"the engine is not ready: {self.why_not_ready}", reason="NOT_READY")
        cleared = await self._clearing.clear(clear)
        await self._cache_reports.rewrite()
        engine_log.cleared(self.name, clear.cache_scope, cleared)
        return cleared

    async def add_adapter(self, adapter: AdapterFile) -> str:
        """Have the engine load an adapter, now and whenever it starts. The card lists it once it is loaded.

        Returns:
            Why the engine cannot load it; empty if it has.
        """
        self.adapters.take(adapter)
        self._engine.send(engine_pb2.EngineCommand(load_adapter=adapter.to_engine()))
        return await self.adapters.until_loaded(adapter) if self.is_ready else ""

    def remove_adapter(self, adapter: AdapterFile) -> None:
        """The card does not list it any more, and the engine frees it when no request has it."""
        if self.adapters.drop(adapter):
            unload = engine_pb2.EngineUnloadAdapter(digest=adapter.digest)
            self._engine.send(engine_pb2.EngineCommand(unload_adapter=unload))

    def limit_host(self, n_bytes: int) -> None:
        """Have the engine, and those after it, keep to this much host memory."""
        if n_bytes != self.host_limit.now:
            self._options.engine.host_bytes = n_bytes
            self.host_limit.give(n_bytes)
            limit = engine_pb2.EngineLimitHost(bytes=n_bytes)
            self._engine.send(engine_pb2.EngineCommand(limit_host=limit))

    def report_cache(self) -> None:
        """Have the engine report all that it has cached once more."""
        self._engine.send(engine_pb2.EngineCommand(report_cache=engine_pb2.EngineReportCache()))

    def _discard(self, resident: Resident, why: str, *, leaves_state: bool = False) -> None:
        self._shared.spans.left(resident, "dropped")
        self.residents.left([resident], time.monotonic())
        request_log.left(resident, why)
        self._send_cancel(resident.key, is_silent=True, leaves_state=leaves_state)

    def _send_cancel(self, key: str, *, is_silent: bool, leaves_state: bool = False) -> None:
        cancel = engine_pb2.EngineCancel(key=key, is_silent=is_silent, leaves_state=leaves_state)
        self._engine.send(engine_pb2.EngineCommand(cancel=cancel))

    def hand_over(self) -> list[Resident]:
        """Take every resident request out: other workers go on with them."""
        left = self.residents.clear()
        self.residents.left(left, time.monotonic())
        for resident in left:
            self._shared.spans.left(resident, "worker_left")
            request_log.left(resident, "worker_left")
        return left

    async def until_none_runs(self) -> None:
        """Return when no request runs. A resident one that does not run makes no progress by itself."""
        while self.residents.has_running:
            self._has_news.clear()
            await self._has_news.wait()

    async def on_report(self, report: engine_pb2.EngineReport) -> None:
        """Act on what the engine reports."""
        if report.HasField("step"):
            self._watchdog.progressed()
            await self._on_step(report.step)
        elif report.HasField("ready"):
            await self._on_ready(report.ready)
        elif report.HasField("flushed"):
            engine_log.flushed(self.name, report.flushed)
            if report.flushed.requests_only == self._flushes_requests:
                self._flushed.set()

    async def _on_step(self, step: engine_pb2.StepReport) -> None:
        self._shared.spans.on_step(step)
        for emission in step.emissions:
            resident = self.residents.emitted(emission)
            if resident is not None:
                await self._shared.emitter.publish(resident.subject, emission.chunk)
        if not dict(step.ListFields()).keys() <= _OF_EVERY_STEP:
            await self._on_events(step)
        stats = step.stats
        self.stats = stats
        self.cache_counts.add(stats)
        self.rates.observe(stats)
        self._metrics.observe(stats)
        self.adapters.count(stats)
        self._has_news.set()

    async def _on_events(self, step: engine_pb2.StepReport) -> None:
        """Handle events that most steps have none of."""
        for prefilled in step.prefilled:
            self.residents.prefilled(prefilled)
        for moved in step.residences:
            resident = self.residents.moved(moved)
            if resident is not None and resident.is_descheduled_by(moved):
                request_log.yielded(resident, moved.reason)
                await self._shared.events.descheduled(moved, resident)
        for ended in step.finished:
            resident = self.residents.finish(ended.key, ended.epoch, time.monotonic())
            if resident is not None:
                request_log.finished(resident, ended)
                await self._shared.events.finished(ended, resident)
        for n_bytes in step.host_limits:
            self.host_limit.taken(n_bytes)
        for name in step.wanted_images:
            self._images.begin(name)
        self._cache_reports.take_in(step.cached)
        self._shared.transfers.on_step(step)
        for cleared in step.cleared:
            self._clearing.on_cleared(cleared)
        engine_log.stepped(self.name, step)
        if self.device_context is not None and _learn_contexts(self.device_context, step):
            self._metrics.runs_on(self.device_context)
        if step.adapters:
            self.adapters.on_loaded(step.adapters)
            await self._shared.on_change()
        self._metrics.ledger_repairs.inc(len(step.ledger_repairs))

    async def _on_ready(self, ready: engine_pb2.EngineReady) -> None:
        self.residents.limits = Limits(
            slots=ready.slots,
            kv_cells=ready.kv_cells,
            context_length=ready.context_length,
            vocabulary_size=ready.vocabulary_size,
            constraint_error=ready.constraint_error,
            takes_images=ready.takes_images or ready.takes_audio,
            embeds=embeds(self._options.engine.role),
        )
        if ready.HasField("trials"):
            # For the engine after this one.
            self._options.engine.trials.CopyFrom(ready.trials)
        self.host_limit.taken(ready.host_bytes)
        learn_card(self.card, ready, projector=self._options.engine.mmproj_digest)
        self.kv_bytes = ready.kv_bytes
        self.exchange = ready.exchange
        self.device_context = ready.device_context
        self._metrics.runs_on(ready.device_context)
        self._metrics.cache_is(ready.kv_cells, ready.kv_bytes)
        self.adapters.on_loaded(ready.adapters)
        self.why_not_ready = ""
        self.prefix_sharing, self.prefix_sharing_reason = ready.prefix_sharing, ready.prefix_sharing_reason
        self._metrics.shares(sharing_name(ready.prefix_sharing))
        engine_log.ready(
            self.name,
            ready,
            self._options.engine,
            kv_types=self.kv_types,
            model_context_length=self._file.context_length,
            is_first=self._is_first_engine,
        )
        self._is_first_engine = False
        await self._shared.transfers.on_ready(ready.exchange, self._options.engine)
        await self._shared.on_change()

    async def on_engine_death(self, why: str, killer: str = "") -> None:
        """Tell the scheduler which requests are gone with the engine.

        Args:
            killer: the object of the image that it crashed over; "" where there is none.
        """
        self._metrics.engine_died()
        self.why_not_ready = why
        self.host_limit.died()
        self.stats = engine_pb2.StepStats()
        self._cache_reports.clear()
        self._clearing.on_engine_death()
        self._shared.transfers.on_engine_death()
        lost = self.residents.clear()
        self.residents.left(lost, time.monotonic())
        self._shared.spans.lost(lost, why)
        for resident in lost:
            request_log.left(resident, "engine_died")
        self._has_news.set()
        self._flushed.set()  # there is nothing to wait for
        await self._shared.events.engine_died(lost, why, killer_id=id_of(killer))
        await self._shared.on_change()

    async def _watch(self) -> None:
        """Kill an engine that should make steps and makes none; it is then started again."""
        while True:
            await until_next(_WATCH_INTERVAL_S)
            spent_s = cpu_s(self._engine.pid) if self._engine.pid else 0.0
            if self._watchdog.is_stuck(has_running=self.residents.has_running, cpu_s=spent_s):
                self._watchdog.progressed()
                self._metrics.stuck.inc()
                self._engine.kill(f"the engine made no step for {self._options.stuck_s:g} s and was killed")


def _learn_contexts(devices: device_pb2.DeviceContext, step: engine_pb2.StepReport) -> bool:
    """Take in which contexts an engine has made or given up; returns whether there are any."""
    devices.flash_attention_by_context.update(step.flash_attention_by_context)
    if step.draft_model_error:
        devices.flash_attention_by_context.pop("draft", None)
    return bool(step.flash_attention_by_context or step.draft_model_error)
