"""The adapters of a loaded model, as its card lists them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from inferflux.common.process import logs
from inferflux.v1 import engine_pb2, model_pb2
from inferflux.worker.files.adapter_file import AdapterFile
from inferflux.worker.metrics import ModelMetrics

_LOAD_LIMIT_S = 10.0

log = logs.get("worker.model_host")


class ModelAdapters:
    """Adapters that the engine has loaded, or loads.

    Args:
        card: lists those that requests may choose.
        engine: what every engine of the model starts with: it loads them all.
    """

    def __init__(
        self, card: model_pb2.ModelCard, engine: engine_pb2.EngineConfig, metrics: ModelMetrics
    ) -> None:
        self._card = card
        self._engine = engine
        self._metrics = metrics
        # By name and digest: one that is replaced stays until the other is loaded.
        self._taken: dict[tuple[str, str], AdapterFile] = {}
        self._loaded: set[str] = set()
        self._waiting: dict[str, asyncio.Future[str]] = {}

    def has(self, digest: str) -> bool:
        """True if requests may choose it."""
        return digest in self._loaded

    def take(self, adapter: AdapterFile) -> None:
        """The engine is to load it."""
        self._taken[adapter.name, adapter.digest] = adapter
        if all(other.digest != adapter.digest for other in self._engine.adapters):
            self._engine.adapters.append(adapter.to_engine())

    async def until_loaded(self, adapter: AdapterFile) -> str:
        """Return when the engine has loaded it; why it could not, or "". An engine that does not say loads it
        when it starts again."""
        waiting = self._waiting.setdefault(adapter.digest, asyncio.get_running_loop().create_future())
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(waiting), _LOAD_LIMIT_S)
        return ""

    def drop(self, adapter: AdapterFile) -> bool:
        """It is not to be chosen any more under its name; whether the engine is to free it."""
        if self._taken.pop((adapter.name, adapter.digest), None) is None:
            return False
        is_last = all(digest != adapter.digest for _, digest in self._taken)
        if is_last:
            self._loaded.discard(adapter.digest)
            kept = [other for other in self._engine.adapters if other.digest != adapter.digest]
            self._engine.ClearField("adapters")
            self._engine.adapters.extend(kept)
        self._list()
        return is_last

    def on_loaded(self, loaded: Iterable[engine_pb2.EngineAdapterLoaded]) -> None:
        """The engine says what it has loaded, and what it could not."""
        for one in loaded:
            if one.error:
                self._loaded.discard(one.digest)
                log.error("an adapter could not be loaded", model=self._card.name, why=one.error)
            elif any(digest == one.digest for _, digest in self._taken):
                self._loaded.add(one.digest)
            waiting = self._waiting.pop(one.digest, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(one.error)
        self._list()

    def count(self, stats: engine_pb2.StepStats) -> None:
        """Count the tokens of a step, under the first name of its adapter."""
        if stats.adapter_switches:
            self._metrics.adapter_switches.inc(stats.adapter_switches)
        if not stats.adapter_digest:
            return
        names = [name for name, digest in self._taken if digest == stats.adapter_digest]
        if names:
            self._metrics.adapter_tokens(min(names)).inc(stats.prefill_tokens + stats.decode_tokens)

    def _list(self) -> None:
        # The one that was taken last has its name.
        listed = {name: adapter for (name, digest), adapter in self._taken.items() if self.has(digest)}
        self._card.ClearField("adapters")
        self._card.adapters.extend(listed[name].to_card() for name in sorted(listed))
        self._metrics.adapters_loaded.set(len(self._card.adapters))
