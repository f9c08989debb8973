"""The null engine on the worker's own event loop. To its worker it is as an engine process is."""

from __future__ import annotations

import asyncio
import contextlib

from inferflux.common.contract.models.model_roles import embeds
from inferflux.v1 import device_pb2, engine_pb2, scheduler_pb2
from inferflux.worker.processes.engine_host import DeathHandler, EngineLoadError, ReportHandler

from .core import NullCore, Rates

_RESTART_S = 0.1


class NullEngine:
    """Engine without a process: it has what `EngineLink` asks for.

    Args:
        config: of the engine. What belongs to a model's weights has no effect.
        kv_cells: where the configuration names no number.
        vocabulary_size, context_length: of the model file.
        on_report: awaited for each report, in order.
        on_death: awaited when it was killed.
    """

    def __init__(
        self,
        config: engine_pb2.EngineConfig,
        rates: Rates,
        on_report: ReportHandler,
        on_death: DeathHandler,
        *,
        kv_cells: int,
        vocabulary_size: int,
        context_length: int,
    ) -> None:
        self._config = config
        self._rates = rates
        self._on_report = on_report
        self._on_death = on_death
        self._vocabulary_size = vocabulary_size
        self._context_length = min(config.context_length or context_length, context_length)
        self._kv_cells = config.kv_cells or kv_cells
        self._core: NullCore | None = None
        self._woken = asyncio.Event()
        self._is_stopping = False
        self._killed_for = ""
        self._is_flush_due = False
        self.pid: int | None = None

    def send(self, command: engine_pb2.EngineCommand) -> None:
        """Pass a command on. Without an engine it is lost, as every resident request is."""
        if self._core is not None:
            self._core.obey(command)
            self._is_flush_due |= command.HasField("flush")
            self._woken.set()

    def kill(self, why: str) -> None:
        """All that it has is lost, and it begins anew."""
        self._killed_for = why
        self._core = None
        self._woken.set()

    async def run(self) -> None:
        """Make steps until `stop`.

        Raises:
            EngineLoadError: the model does not generate.
        """
        if embeds(self._config.role):
            raise EngineLoadError(f"{self._config.model_path}: the null engine does not embed")
        while not self._is_stopping:
            self._core = core = self._new_core()
            await self._on_report(engine_pb2.EngineReport(ready=self._ready()))
            await self._live(core)
            if not self._is_stopping:
                await self._on_death(self._killed_for, "")
                await asyncio.sleep(_RESTART_S)

    async def stop(self) -> None:
        """End; its resident requests are gone."""
        self._is_stopping = True
        self._core = None
        self._woken.set()

    async def _live(self, core: NullCore) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while self._core is core:
            if core.is_running:
                # Steps keep their rate, and one that is late is not made up for.
                due_s = max(due_s + self._rates.step_s, loop.time())
                await asyncio.sleep(due_s - loop.time())
            else:
                await self._until_woken(core)
                due_s = loop.time()
            if self._core is not core:
                return
            if not core.is_running or loop.time() >= due_s:
                core.step()
            if (report := core.take_report()) is not None:
                await self._on_report(report)
            if self._is_flush_due:
                self._is_flush_due = False
                await self._on_report(engine_pb2.EngineReport(flushed=engine_pb2.EngineFlushed()))

    async def _until_woken(self, core: NullCore) -> None:
        self._woken.clear()
        if core.has_news or self._is_flush_due:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(core.idle_s()):
                await self._woken.wait()

    def _new_core(self) -> NullCore:
        return NullCore(
            self._config.worker_id,
            self._rates,
            kv_cells=self._kv_cells,
            vocabulary_size=self._vocabulary_size,
        )

    def _ready(self) -> engine_pb2.EngineReady:
        return engine_pb2.EngineReady(
            kv_cells=self._kv_cells,
            context_length=min(self._context_length, self._kv_cells),
            vocabulary_size=self._vocabulary_size,
            slots=self._config.slots,
            prefix_sharing=scheduler_pb2.PREFIX_SHARING_NONE,
            prefix_sharing_reason="the null engine caches no prefixes",
            has_chat_template=True,
            constraint_error="the null engine constrains no answers",
            speculation_error="the null engine drafts no tokens",
            device_context=device_pb2.DeviceContext(),
            adapters=[
                engine_pb2.EngineAdapterLoaded(digest=adapter.digest, error="the null engine has no adapters")
                for adapter in self._config.adapters
            ],
        )
