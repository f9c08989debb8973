"""The worker's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from inferflux.v1 import engine_pb2

_RUNNING = Gauge("inferflux_worker_requests", "Requests on board of the engine", ["model"])
_KV_USAGE = Gauge("inferflux_kv_cache_usage_ratio", "Filled part of the KV cache", ["model"])
_KV_RESERVED = Gauge("inferflux_kv_cache_reserved_ratio", "Reserved part of the KV cache", ["model"])
_PREFILL = Counter("inferflux_engine_prefill_tokens", "Prompt tokens computed", ["model"])
_DECODE = Counter("inferflux_engine_decode_tokens", "Tokens decoded after the first", ["model"])
_ITERATION = Histogram(
    "inferflux_iteration_tokens",
    "Tokens in one engine step",
    ["model"],
    buckets=(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
)
_STEP = Histogram(
    "inferflux_engine_step_seconds",
    "One engine step, sampling included",
    ["model"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
_DEATHS = Counter("inferflux_engine_deaths", "Engine processes that ended unasked", ["model"])
_FLASH = Gauge("inferflux_flash_attention_enabled", "1 when flash attention is on", ["model"])


class WorkerMetrics:
    """Metrics of one model, their labels bound once."""

    def __init__(self, model: str, *, kv_cells: int, flash_attention: bool) -> None:
        self.kv_cells = kv_cells
        self._running = _RUNNING.labels(model)
        self._kv_usage = _KV_USAGE.labels(model)
        self._kv_reserved = _KV_RESERVED.labels(model)
        self._prefill = _PREFILL.labels(model)
        self._decode = _DECODE.labels(model)
        self._iteration = _ITERATION.labels(model)
        self._step = _STEP.labels(model)
        self._deaths = _DEATHS.labels(model)
        _FLASH.labels(model).set(1 if flash_attention else 0)

    def observe(self, stats: engine_pb2.StepStats) -> None:
        self._running.set(stats.sequences)
        if self.kv_cells:
            self._kv_usage.set(stats.kv_cells_used / self.kv_cells)
            self._kv_reserved.set(stats.kv_cells_reserved / self.kv_cells)
        self._prefill.inc(stats.prefill_tokens)
        self._decode.inc(stats.decode_tokens)
        self._iteration.observe(stats.prefill_tokens + stats.decode_tokens)
        self._step.observe(stats.step_us / 1e6)

    def engine_died(self) -> None:
        self._deaths.inc()
        self._running.set(0)
        self._kv_usage.set(0)
        self._kv_reserved.set(0)
