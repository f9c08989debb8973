"""A loaded model as the scheduler sees it: a worker of its own on the bus, around one `ModelHost`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial

from inferflux.common.contract.errors import InferFluxError, Internal
from inferflux.common.prefixes.hashes import PrefixHasher
from inferflux.common.prefixes.index import Holder
from inferflux.common.process import logs
from inferflux.common.process.tasks import cancel_all
from inferflux.worker.files.model_file import ModelFile
from inferflux.worker.metrics import ModelMetrics
from inferflux.worker.model.events import WorkerEvents
from inferflux.worker.model.model_host import ModelHost
from inferflux.worker.model.model_options import ModelOptions, Shared
from inferflux.worker.model.prefix_reports import NoReports, PrefixReports
from inferflux.worker.model.spans import WorkerSpans
from inferflux.worker.model.worker_state import WorkerState
from inferflux.worker.processes.engine_host import EngineLoadError
from inferflux.worker.transfer.transfers import Transfers

from .heartbeat import Heartbeat
from .intake import Intake
from .model_parts import ModelSide, Process, null_engine

# For what requests have computed, at the end of a drain.
_LEAVE_S = 1.0
# For the last of their state that others fetch.
_SEND_S = 2.0
# The part of the drain limit that writing KV state to disk may take, and what requests leave it at least.
_FLUSH_PART = 0.25
_SHORTEST_FLUSH_S = 1.0

log = logs.get("worker")


class ModelWorker:
    """One model, loaded and served as the worker `worker_id`, until it is to leave.

    Args:
        on_change: awaited when the model becomes ready, or is ready no more.

    Attributes:
        state: which worker it is, and whether it takes requests.
        model: its engine and its requests.
    """

    def __init__(
        self,
        process: Process,
        worker_id: str,
        file: ModelFile,
        options: ModelOptions,
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        settings, bus = process.settings, process.bus
        self._process = process
        self._on_change = on_change
        self.state = WorkerState.begin(worker_id, settings)
        self._events = WorkerEvents(bus, self.state)
        metrics = process.metrics.of(options.name)
        spans = WorkerSpans(process.tracer, worker_id)
        side = ModelSide(file.digest, spans)
        self._transfers = Transfers(
            process.kv, bus, self.state, side, spans, process.metrics.kv, self._events.state_taken
        )
        self._cache_reports = self._new_cache_reports(file, metrics)
        self.model = ModelHost(
            options,
            file,
            metrics,
            Shared(
                process.emitter,
                self._events,
                spans,
                on_change=self._on_model_change,
                read_image=bus.get_image,
                start_engine=process.engines.take,
                transfers=self._transfers,
            ),
            self._cache_reports,
            make_engine=null_engine(settings, file, options) if settings.engine == "null" else None,
        )
        side.bind(self.model)
        self._heartbeat = Heartbeat(bus, self.state, self.model, self._transfers)
        self._intake = Intake(
            bus, self.state, self.model, self._heartbeat, process.metrics.bad, self._transfers
        )
        self._leaving = asyncio.Event()
        self._drain_limit_s = settings.drain_limit_s

    def _new_cache_reports(self, file: ModelFile, metrics: ModelMetrics) -> PrefixReports | NoReports:
        process, state = self._process, self.state
        if process.settings.engine == "null":
            return NoReports()
        return PrefixReports(
            process.redis,
            Holder(state.worker_id, state.incarnation),
            partial(PrefixHasher, model_digest=file.digest),
            metrics,
            report_again=lambda: self.model.report_cache(),
        )

    @property
    def exchanges_state(self) -> bool:
        """Whether KV state can come from other workers and go to them, or none has to: it embeds."""
        limits = self.model.limits
        return self._transfers.source() is not None or (limits is not None and limits.embeds)

    def leave(self, drain_limit_s: float) -> None:
        """Have `run` drain and return: requests may run on for `drain_limit_s`, then others take them."""
        self._drain_limit_s = drain_limit_s
        self._leaving.set()

    async def run(self) -> None:
        """Serve until `leave`, then drain.

        Raises:
            EngineLoadError: the model could not be loaded, or not again. The scheduler was told that this
                worker leaves.
        """
        await self._intake.listen()
        await self._transfers.listen()
        own = {
            asyncio.create_task(work)
            for work in (self._heartbeat.run(), self.model.run(), self._cache_reports.run())
        }
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            await asyncio.wait({*own, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                try:
                    _raise_first(*own)
                except EngineLoadError:
                    self.state.leave()
                    await self._hand_over()
                    raise
            await self._drain()
        finally:
            await self._intake.close()
            await self._transfers.close()
            await self.model.stop()
            await cancel_all([*own, leaving])
            await self._cache_reports.leave()

    async def beat(self) -> None:
        """Send a heartbeat now."""
        await self._heartbeat.beat()

    async def _drain(self) -> None:
        """Let requests finish within the limit, tell the scheduler what is left, keep what was computed."""
        began_s = time.monotonic()
        self.state.leave(began_s + self._drain_limit_s)
        await self._on_change()
        await self._heartbeat.beat()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_limit_s):
                await self.model.until_none_runs()
        await self.model.flush(_LEAVE_S, requests_only=True)
        n_left = await self._hand_over()
        log.info("drained", model=self.model.name, handed_over=n_left)
        limit_s = self._drain_limit_s
        await self.model.flush(flush_limit_s(limit_s, limit_s - (time.monotonic() - began_s)))
        await self._transfers.finish(_SEND_S)

    async def _hand_over(self) -> int:
        """Tell the scheduler which requests this worker leaves to others; returns how many."""
        left = self.model.hand_over()
        await self._events.left(left)
        try:
            await self._process.bus.flush()
        except InferFluxError as error:
            # The scheduler learns from its silence what it has left.
            log.warning("not known whether the scheduler was told what is left", reason=error.reason)
        return len(left)

    async def _on_model_change(self) -> None:
        await self._on_change()
        await self._heartbeat.beat()


def flush_limit_s(drain_limit_s: float, left_s: float) -> float:
    """Seconds that KV state may be written to disk at the end of a drain (pure): those that are left of its
    limit, but no more than a part of it; and a little if requests took all of it."""
    return min(max(left_s, _SHORTEST_FLUSH_S), drain_limit_s * _FLUSH_PART)


def _raise_first(*tasks: asyncio.Task[None]) -> None:
    """Raise what ended one of the tasks that never end by themselves."""
    for task in tasks:
        if task.done():
            task.result()
    raise Internal("a task of the worker ended unasked")
