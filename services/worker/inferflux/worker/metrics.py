"""The worker's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from inferflux.common.process.bad_messages import BadMessages
from inferflux.common.process.metrics import Declare
from inferflux.v1 import device_pb2, engine_pb2

_RESTORE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_TRANSFER_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 2500, 5000)
_STEP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

# Gauges that show a field of StepStats as it is: the field, the metric and its meaning.
_GAUGES = {
    "sequences": ("worker_requests", "Resident requests: running, parked and swapped."),
    "swapped": (
        "worker_swapped_requests",
        "Requests that wait to resume without KV cells: in host memory, or to be recomputed.",
    ),
    "swap_bytes_used": ("worker_swap_bytes", "Host memory that holds the state of swapped requests."),
    "kv_cells_shared": ("kv_cache_shared_cells", "KV cells that several sequences share."),
    "kv_cells_cached": ("kv_cache_cached_cells", "KV cells that cached prefixes alone fill."),
    "kv_cells_high_water": ("kv_cache_high_water_cells", "Most KV cells that were filled at once."),
    "kv_cells_width": (
        "kv_cache_width_cells",
        "KV cells up to the highest that may be filled, empty ones among them: a step goes through no more.",
    ),
    "cached_sequences": ("prefix_cache_sequences", "Sequences that are kept as cached prefixes."),
    "image_bytes": ("image_cache_bytes", "Memory of encoded images that may be asked for again."),
}
# Counters of a field that counts since the last report.
_COUNTERS = {
    "swap_outs": ("worker_swap_outs", "States that were copied from KV cache to host memory."),
    "swap_ins": ("worker_swap_ins", "States that were copied from host memory to KV cache."),
    "recomputes": ("worker_recomputes", "States that were discarded and have to be recomputed."),
    "kv_compactions": ("kv_cache_compactions", "Times that the filled KV cells were moved together."),
    "prefix_queries": ("prefix_cache_queries", "Prompts that were looked up for a prefix."),
    "prefix_hits": ("prefix_cache_hits", "Prompts that begin with a prefix that was there."),
    "prefix_partial_hits": (
        "prefix_partial_hits",
        "Hits that left more to compute than the prompt's last token.",
    ),
    "prefix_matched_tokens": (
        "prefix_matched_tokens",
        "Prompt tokens that were not computed because they were there.",
    ),
    "prefix_evictions": (
        "prefix_cache_evictions",
        "Cached prefixes that were evicted, as a whole or their last part.",
    ),
    "retried_tokens": (
        "retried_tokens",
        "Tokens of requests that another engine process had before, prompt and answer so far.",
    ),
    "retried_found_tokens": (
        "retried_found_tokens",
        "Those of `retried_tokens` that were cached in any tier, and not computed again.",
    ),
    "prefill_tokens": ("engine_prefill_tokens", "Tokens that were prefilled, recomputed ones included."),
    "decode_tokens": ("engine_decode_tokens", "Tokens that were decoded, each request's first not counted."),
    "drafts": ("spec_decode_num_drafts", "Drafts of next tokens that were verified."),
    "draft_tokens": ("spec_decode_num_draft_tokens", "Tokens that were drafted."),
    "images_encoded": ("images_encoded", "Images that were encoded."),
    "image_hits": ("image_cache_hits", "Images of requests that were encoded already."),
}


class WorkerMetrics:
    """Every metric of a worker. Those of a model carry its name as a label: `of` binds it."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._models: dict[str, ModelMetrics] = {}
        declare = Declare(registry)
        gauge, counter = (
            partial(declare.gauge, labels=("model",)),
            partial(declare.counter, labels=("model",)),
        )
        self.gauges = {field: gauge(*described) for field, described in _GAUGES.items()}
        self.counters = {field: counter(*described) for field, described in _COUNTERS.items()}
        self.kv_usage = gauge("kv_cache_usage_ratio", "Part of the KV cells that is filled, 0 to 1.")
        self.kv_reserved = gauge(
            "kv_cache_reserved_ratio", "Part of the KV cells that running requests fill, 0 to 1."
        )
        self.kv_bytes = gauge("kv_cache_bytes", "Memory that keys and values of all KV cells take.")
        self.kv_fragmentation = gauge(
            "kv_cache_fragmentation_ratio", "Part of `kv_cache_width_cells` that is empty, 0 to 1."
        )
        self.parked = gauge("worker_parked_requests", "Requests that wait to resume and keep their KV cells.")
        tier = ("model", "tier")
        self.tier_bytes = declare.gauge(
            "kv_tier_bytes", "Bytes of KV state outside the KV cache, by tier: `host`, `disk`.", tier
        )
        self.tier_states = declare.gauge(
            "kv_tier_states", "Preempted requests and cached prefixes whose state is in the tier.", tier
        )
        self.tier_hits = declare.counter("kv_tier_hits", "Prefixes that were restored from the tier.", tier)
        self.tier_evictions = declare.counter(
            "kv_tier_evictions",
            "States that left the tier for lack of room: from `host` to disk if there is one.",
            tier,
        )
        self.tier_restore_time = declare.histogram(
            "kv_tier_restore_seconds",
            "Seconds from the lookup of a prefix until it was in the KV cache.",
            _RESTORE_BUCKETS_S,
            tier,
        )
        self.ledger_repairs = counter(
            "kv_ledger_repairs",
            "Sequences of which llama.cpp had other KV cells than the engine had counted. They were dropped, "
            "and recomputed where a request needed them.",
        )
        self.prefix_sharing = declare.gauge(
            "prefix_cache_sharing",
            "1 for what of a computed prefix a request can begin with: full, window, checkpoints or none.",
            ("model", "kind"),
        )
        self.accepted_draft_tokens = counter(
            "spec_decode_num_accepted_tokens", "Drafted tokens that were accepted."
        )
        self.accepted_per_position = declare.counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens that were accepted, by their position in the draft: 0 is the first one.",
            ("model", "position"),
        )
        self.iteration_tokens = declare.histogram(
            "iteration_tokens",
            "Tokens in one engine step, prefilled and decoded.",
            _TOKEN_BUCKETS,
            ("model",),
        )
        self.step_time = declare.histogram(
            "engine_step_seconds",
            "Seconds of one engine step, sampling included.",
            _STEP_BUCKETS_S,
            ("model",),
        )
        self.deaths = counter("engine_deaths", "Engine processes that died.")
        self.stuck = counter(
            "worker_stuck_engines", "Engine processes that were killed because they made no progress."
        )
        self.bad = BadMessages(
            declare.counter(
                "worker_bad_messages",
                "Messages over NATS that failed their checks and were ignored: `batch`, `command`, `cancel` "
                "or `leader`.",
                ("kind",),
            )
        )
        self.index_blocks = gauge(
            "prefix_index_blocks", "Token blocks that this worker has in the prefix index."
        )
        self.index_failures = counter(
            "prefix_index_write_failures", "Writes to the prefix index that Redis did not answer."
        )
        self.index_losses = counter(
            "prefix_index_rewrites",
            "Times that the prefix index was not as this worker had left it, and was written anew.",
        )
        self.flash_attention = declare.gauge(
            "flash_attention_enabled",
            "1 when the context uses flash attention, whatever was asked for, else 0. Contexts of an engine: "
            "`main`, `prefill`, `draft`, `deterministic`, `projector`; or `embedding` alone.",
            ("model", "context"),
        )
        self.gpu_layers = gauge("gpu_layers", "Layers of the model on GPUs, those of RPC servers among them.")
        device = ("model", "device")
        self.device_memory = declare.gauge(
            "device_memory_bytes", "Memory of a device that the model could use.", device
        )
        self.device_memory_free = declare.gauge(
            "device_memory_free_bytes", "What of it was free when the model was ready.", device
        )
        self.device_used = declare.gauge(
            "device_model_bytes",
            "What the model has on the device: `weights`, `kv`, or `compute`, which a step computes with.",
            ("model", "device", "kind"),
        )
        adapter = ("model", "adapter")
        self.adapter_tokens = declare.counter(
            "adapter_tokens", "Tokens that were computed with an adapter, prefilled and decoded.", adapter
        )
        self.adapter_switches = counter(
            "adapter_switches", "Times that a step had another adapter than the step before it."
        )
        self.adapters_loaded = gauge("adapters_loaded", "Adapters that requests may choose now.")
        self.kv = KvMetrics(declare)

    def of(self, model: str) -> ModelMetrics:
        """The metrics of one model. Workers of one process that have the same model share them."""
        if model not in self._models:
            self._models[model] = ModelMetrics(self, model)
        return self._models[model]


class KvMetrics:
    """Metrics of KV state that is fetched from other workers, and sent to them."""

    def __init__(self, declare: Declare) -> None:
        self._duration = declare.histogram(
            "kv_transfer_duration_ms",
            "Milliseconds from asking another worker for KV state until all but its last tokens are in the "
            "KV cache, by what carries it: `shm`, `tcp`, `nats`, `channel`; it may be computed meanwhile.",
            _TRANSFER_BUCKETS_MS,
            ("backend",),
        )
        self._bytes = declare.counter(
            "kv_transfer_bytes",
            "Bytes of KV state, by what carries it; `received`: they are in the KV cache; `sent`.",
            ("backend", "direction"),
        )
        self._failures = declare.counter(
            "kv_transfer_failures",
            "Fetches of KV state from other workers that came to no end, by reason: the source is "
            "`unreachable`, or has `refused`; the connection was `lost`; a `timeout`; a packet was out of "
            "`order` or `corrupt`; there was `no_room`, or too many were under way (`busy`); it was "
            "`superseded`; the `engine` did not take it. What is missing is computed.",
            ("reason",),
        )

    def caught_up(self, backend: str, seconds: float) -> None:
        """Nearly all of a state is in the KV cache, `seconds` after it was asked for."""
        self._duration.labels(backend).observe(seconds * 1000)

    def piece_came(self, backend: str, n_bytes: int) -> None:
        """A piece is in the KV cache."""
        self._bytes.labels(backend, "received").inc(n_bytes)

    def sent(self, backend: str, n_bytes: int) -> None:
        """A piece has left for another worker."""
        self._bytes.labels(backend, "sent").inc(n_bytes)

    def failed(self, reason: str) -> None:
        """A fetch has failed."""
        self._failures.labels(reason).inc()


class TierMetrics:
    """Metrics of one tier of one model.

    Args:
        latest: gives the tier's latest figures.
    """

    def __init__(
        self, worker: WorkerMetrics, model: str, tier: str, latest: Callable[[], engine_pb2.TierStats]
    ) -> None:
        worker.tier_bytes.labels(model, tier).set_function(lambda: latest().bytes)
        worker.tier_states.labels(model, tier).set_function(lambda: latest().states)
        self._hits = worker.tier_hits.labels(model, tier)
        self._evictions = worker.tier_evictions.labels(model, tier)
        self._restore_time = worker.tier_restore_time.labels(model, tier)

    def observe(self, stats: engine_pb2.TierStats) -> None:
        """Count what happened since the last report."""
        if stats.hits:
            self._hits.inc(stats.hits)
        if stats.evictions:
            self._evictions.inc(stats.evictions)
        for microseconds in stats.restore_us:
            self._restore_time.observe(microseconds / 1e6)


class ModelMetrics:
    """Metrics of one model, their labels bound once: all of them are there before anything has happened.

    Attributes:
        kv_cells: of the model's KV cache; 0 until they are known.
    """

    def __init__(self, worker: WorkerMetrics, model: str) -> None:
        self.kv_cells = 0
        self._latest = engine_pb2.StepStats()
        self._show_latest(worker, model)
        self._counters = [(field, counter.labels(model)) for field, counter in worker.counters.items()]
        self._kv_bytes = worker.kv_bytes.labels(model)
        self._host = TierMetrics(worker, model, "host", lambda: self._latest.host)
        self._disk = TierMetrics(worker, model, "disk", lambda: self._latest.disk)
        self._prefix_sharing = partial(worker.prefix_sharing.labels, model)
        self._accepted_draft_tokens = worker.accepted_draft_tokens.labels(model)
        self._accepted_per_position = partial(worker.accepted_per_position.labels, model)
        self._iteration_tokens = worker.iteration_tokens.labels(model)
        self._step_time = worker.step_time.labels(model)
        self._flash_attention = partial(worker.flash_attention.labels, model)
        self._forget_context = partial(worker.flash_attention.remove, model)
        self._contexts: set[str] = set()
        self._gpu_layers = worker.gpu_layers.labels(model)
        self._device_memory = partial(worker.device_memory.labels, model)
        self._device_memory_free = partial(worker.device_memory_free.labels, model)
        self._device_used = partial(worker.device_used.labels, model)
        self.adapter_tokens = partial(worker.adapter_tokens.labels, model)
        self.adapter_switches = worker.adapter_switches.labels(model)
        self.adapters_loaded = worker.adapters_loaded.labels(model)
        self._deaths = worker.deaths.labels(model)
        self.stuck = worker.stuck.labels(model)
        self.ledger_repairs = worker.ledger_repairs.labels(model)
        self.index_blocks = worker.index_blocks.labels(model)
        self.index_failures = worker.index_failures.labels(model)
        self.index_losses = worker.index_losses.labels(model)

    def _show_latest(self, worker: WorkerMetrics, model: str) -> None:
        """Have gauges read the latest report when they are asked: a step sets none."""

        def show(gauge: Gauge, value_of: Callable[[engine_pb2.StepStats], float]) -> None:
            gauge.labels(model).set_function(lambda: value_of(self._latest))

        for field, gauge in worker.gauges.items():
            show(gauge, attrgetter(field))
        show(worker.parked, lambda stats: stats.parked - stats.swapped)
        show(worker.kv_usage, lambda stats: _part(stats.kv_cells_used, self.kv_cells))
        show(worker.kv_reserved, lambda stats: _part(stats.kv_cells_reserved, self.kv_cells))
        show(worker.kv_fragmentation, lambda stats: _part(stats.kv_cells_holes, stats.kv_cells_width))

    def observe(self, stats: engine_pb2.StepStats) -> None:
        """Take over the figures of one report."""
        self._latest = stats
        for field, counter in self._counters:
            if count := getattr(stats, field):
                counter.inc(count)
        if stats.HasField("host"):
            self._host.observe(stats.host)
        if stats.HasField("disk"):
            self._disk.observe(stats.disk)
        for position, accepted in enumerate(stats.accepted_draft_tokens):
            self._accepted_draft_tokens.inc(accepted)
            self._accepted_per_position(str(position)).inc(accepted)
        if stats.step_us:
            self._iteration_tokens.observe(stats.prefill_tokens + stats.decode_tokens)
            self._step_time.observe(stats.step_us / 1e6)

    def cache_is(self, cells: int, n_bytes: int) -> None:
        """Cells of the model's KV cache, and what their keys and values take."""
        self.kv_cells = cells
        self._kv_bytes.set(n_bytes)

    def runs_on(self, context: device_pb2.DeviceContext) -> None:
        """The model is loaded, on these devices and with these contexts."""
        contexts = context.flash_attention_by_context
        for gone in self._contexts - contexts.keys():
            self._forget_context(gone)
        for name, is_on in contexts.items():
            self._flash_attention(name).set(is_on)
        self._contexts = set(contexts)
        self._gpu_layers.set(context.gpu_layers)
        for device in context.devices:
            self._device_memory(device.name).set(device.memory_total_bytes)
            self._device_memory_free(device.name).set(device.memory_free_bytes)
            self._device_used(device.name, "weights").set(device.weights_bytes)
            self._device_used(device.name, "kv").set(device.kv_bytes)
            self._device_used(device.name, "compute").set(device.compute_bytes)

    def shares(self, kind: str) -> None:
        """Prefixes are shared in this way."""
        self._prefix_sharing(kind).set(1)

    def engine_died(self) -> None:
        """Count it: with the engine, all that it held is gone."""
        self._deaths.inc()
        self.observe(engine_pb2.StepStats())


def _part(some: int, of_all: int) -> float:
    return some / of_all if of_all else 0.0
