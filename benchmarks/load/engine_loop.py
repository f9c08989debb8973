"""The worker's engine in this process, without a service around it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from inferflux.v1 import worker_pb2
from inferflux.worker.settings import WorkerSettings

from .trace import Trace

if TYPE_CHECKING:
    from inferflux.worker.engine.llama.native import Backend


def item_of(index: int, prompt: list[int], max_tokens: int) -> worker_pb2.BatchItem:
    """A greedy request that goes on past the model's own end."""
    item = worker_pb2.BatchItem()
    request = item.request
    request.tenant, request.request_id, request.epoch = "bench", f"r{index}", 1
    request.prompt_token_ids.extend(prompt)
    request.params.max_tokens = max_tokens
    request.params.ignore_eos = True
    return item


class EngineLoop:
    """An engine with a worker's default settings, and traces of what it generates.

    Args:
        slots: requests at once.
        has_prefix_cache: whether prefixes are kept and shared.
    """

    def __init__(self, backend: Backend, slots: int, *, has_prefix_cache: bool = True) -> None:
        # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
        from inferflux.worker.engine.step.core import Engine
        from inferflux.worker.engine.tiers.tiers import Tiers

        self.backend = backend
        for seq_id in range(backend.sequences):  # what an earlier loop has left there
            backend.forget(seq_id)
            backend.forget_prefill(seq_id)
        names = ("max_itl_factor", "step_limit_s")
        defaults = {name: WorkerSettings.model_fields[name].default for name in names}
        self._engine = Engine(
            backend, worker_id="bench", tiers=Tiers.off(), has_prefix_cache=has_prefix_cache, **defaults
        )
        self._free = list(range(slots))
        self._running: dict[str, tuple[int, Trace]] = {}

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def is_idle(self) -> bool:
        return not self._running

    def start(self, item: worker_pb2.BatchItem) -> Trace:
        """Start a request in a free slot."""
        item.slot = self._free.pop()
        trace = Trace(sent_s=time.perf_counter())
        self._running[f"{item.request.tenant}.{item.request.request_id}"] = item.slot, trace
        self._engine.start(item)
        return trace

    def cancel_all(self) -> None:
        """End every running sequence."""
        for key in list(self._running):
            self._engine.cancel(key, is_silent=True)
            slot, _ = self._running.pop(key)
            self._free.append(slot)

    def step(self) -> None:
        """One step of the engine.

        Raises:
            RuntimeError: it reported nothing.
        """
        self._engine.step()
        now = time.perf_counter()
        report = self._engine.take_report()
        if report is None:
            raise RuntimeError("a step that reports nothing")
        for emission in report.step.emissions:
            _, trace = self._running[emission.key]
            if emission.generated_tokens > trace.tokens:  # not only that it has started
                trace.tokens = emission.generated_tokens
                trace.arrivals_s.append(now)
        for end in report.step.finished:
            slot, trace = self._running.pop(end.key)
            trace.ended_s = now
            self._free.append(slot)
