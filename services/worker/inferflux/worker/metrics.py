"""The worker's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from inferflux.common.bad_messages import BadMessages
from inferflux.v1 import engine_pb2

_RUNNING = Gauge("inferflux_worker_requests", "Resident requests: running, parked and swapped.", ["model"])
_KV_USAGE = Gauge("inferflux_kv_cache_usage_ratio", "Part of the KV cells that is filled, 0 to 1.", ["model"])
_KV_RESERVED = Gauge(
    "inferflux_kv_cache_reserved_ratio", "Part of the KV cells that running requests fill, 0 to 1.", ["model"]
)
_PARKED = Gauge(
    "inferflux_worker_parked_requests", "Requests that wait to resume and keep their KV cells.", ["model"]
)
_SWAPPED = Gauge(
    "inferflux_worker_swapped_requests",
    "Requests that wait to resume without KV cells: in host memory, or to be recomputed.",
    ["model"],
)
_SWAP_BYTES = Gauge(
    "inferflux_worker_swap_bytes", "Host memory that holds the state of swapped requests.", ["model"]
)
_SWAP_OUTS = Counter(
    "inferflux_worker_swap_outs", "States that were copied from KV cache to host memory.", ["model"]
)
_SWAP_INS = Counter(
    "inferflux_worker_swap_ins", "States that were copied from host memory to KV cache.", ["model"]
)
_RECOMPUTES = Counter(
    "inferflux_worker_recomputes", "States that were discarded and have to be recomputed.", ["model"]
)
_PREFILL = Counter(
    "inferflux_engine_prefill_tokens", "Tokens that were prefilled, recomputed ones included.", ["model"]
)
_DECODE = Counter(
    "inferflux_engine_decode_tokens", "Tokens that were decoded, each request's first not counted.", ["model"]
)
_ITERATION = Histogram(
    "inferflux_iteration_tokens",
    "Tokens in one engine step, prefilled and decoded.",
    ["model"],
    buckets=(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
)
_STEP = Histogram(
    "inferflux_engine_step_seconds",
    "Seconds of one engine step, sampling included.",
    ["model"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
_DEATHS = Counter("inferflux_engine_deaths", "Engine processes that died.", ["model"])
_STUCK = Counter(
    "inferflux_worker_stuck_engines",
    "Engine processes that were killed because they made no progress.",
    ["model"],
)
_BAD = Counter(
    "inferflux_worker_bad_messages",
    "Messages over NATS that failed their checks and were ignored: `batch`, `command` or `cancel`.",
    ["kind"],
)
_FLASH = Gauge("inferflux_flash_attention_enabled", "1 when flash attention is on, else 0.", ["model"])


class WorkerMetrics:
    """Metrics of one model, their labels bound once."""

    def __init__(self, model: str, *, kv_cells: int, flash_attention: bool) -> None:
        self.kv_cells = kv_cells
        self.bad = BadMessages(_BAD)
        self._running = _RUNNING.labels(model)
        self._kv_usage = _KV_USAGE.labels(model)
        self._kv_reserved = _KV_RESERVED.labels(model)
        self._parked = _PARKED.labels(model)
        self._swapped = _SWAPPED.labels(model)
        self._swap_bytes = _SWAP_BYTES.labels(model)
        self._swap_outs = _SWAP_OUTS.labels(model)
        self._swap_ins = _SWAP_INS.labels(model)
        self._recomputes = _RECOMPUTES.labels(model)
        self._prefill = _PREFILL.labels(model)
        self._decode = _DECODE.labels(model)
        self._iteration = _ITERATION.labels(model)
        self._step = _STEP.labels(model)
        self._deaths = _DEATHS.labels(model)
        self._stuck = _STUCK.labels(model)
        _FLASH.labels(model).set(1 if flash_attention else 0)

    def observe(self, stats: engine_pb2.StepStats) -> None:
        self._running.set(stats.sequences)
        self._parked.set(stats.parked - stats.swapped)
        self._swapped.set(stats.swapped)
        self._swap_bytes.set(stats.swap_bytes_used)
        self._swap_outs.inc(stats.swap_outs)
        self._swap_ins.inc(stats.swap_ins)
        self._recomputes.inc(stats.recomputes)
        if self.kv_cells:
            self._kv_usage.set(stats.kv_cells_used / self.kv_cells)
            self._kv_reserved.set(stats.kv_cells_reserved / self.kv_cells)
        if stats.step_us:
            self._prefill.inc(stats.prefill_tokens)
            self._decode.inc(stats.decode_tokens)
            self._iteration.observe(stats.prefill_tokens + stats.decode_tokens)
            self._step.observe(stats.step_us / 1e6)

    def engine_died(self) -> None:
        self._deaths.inc()
        self.observe(engine_pb2.StepStats())

    def engine_was_stuck(self) -> None:
        self._stuck.inc()
