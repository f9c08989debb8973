"""The worker's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from inferflux.common.bad_messages import BadMessages
from inferflux.common.metrics import PREFIX
from inferflux.v1 import engine_pb2

_RESTORE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_STEP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class WorkerMetrics:
    """Every metric of a worker. Those of a model carry its name as a label: `of` binds it."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def gauge(name: str, what: str, labels: Sequence[str] = ("model",)) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", what, labels, registry=registry)

        def counter(name: str, what: str, labels: Sequence[str] = ("model",)) -> Counter:
            return Counter(f"{PREFIX}_{name}", what, labels, registry=registry)

        def histogram(
            name: str, what: str, buckets: Sequence[float], labels: Sequence[str] = ("model",)
        ) -> Histogram:
            return Histogram(f"{PREFIX}_{name}", what, labels, buckets=buckets, registry=registry)

        self.requests = gauge("worker_requests", "Resident requests: running, parked and swapped.")
        self.kv_usage = gauge("kv_cache_usage_ratio", "Part of the KV cells that is filled, 0 to 1.")
        self.kv_reserved = gauge(
            "kv_cache_reserved_ratio", "Part of the KV cells that running requests fill, 0 to 1."
        )
        self.parked = gauge("worker_parked_requests", "Requests that wait to resume and keep their KV cells.")
        self.swapped = gauge(
            "worker_swapped_requests",
            "Requests that wait to resume without KV cells: in host memory, or to be recomputed.",
        )
        self.swap_bytes = gauge("worker_swap_bytes", "Host memory that holds the state of swapped requests.")
        self.tier_bytes = gauge(
            "kv_tier_bytes",
            "Bytes of KV state outside the KV cache, by tier: `host`, `disk`.",
            labels=("model", "tier"),
        )
        self.tier_states = gauge(
            "kv_tier_states",
            "Preempted requests and cached prefixes whose state is in the tier.",
            labels=("model", "tier"),
        )
        self.tier_hits = counter(
            "kv_tier_hits", "Prefixes that were restored from the tier.", labels=("model", "tier")
        )
        self.tier_evictions = counter(
            "kv_tier_evictions",
            "States that left the tier for lack of room: from `host` to disk if there is one.",
            labels=("model", "tier"),
        )
        self.tier_restore_time = histogram(
            "kv_tier_restore_seconds",
            "Seconds from the lookup of a prefix until it was in the KV cache.",
            _RESTORE_BUCKETS_S,
            labels=("model", "tier"),
        )
        self.swap_outs = counter("worker_swap_outs", "States that were copied from KV cache to host memory.")
        self.swap_ins = counter("worker_swap_ins", "States that were copied from host memory to KV cache.")
        self.recomputes = counter(
            "worker_recomputes", "States that were discarded and have to be recomputed."
        )
        self.kv_shared = gauge("kv_cache_shared_cells", "KV cells that several sequences share.")
        self.kv_cached = gauge("kv_cache_cached_cells", "KV cells that cached prefixes alone fill.")
        self.kv_high_water = gauge("kv_cache_high_water_cells", "Most KV cells that were filled at once.")
        self.kv_width = gauge(
            "kv_cache_width_cells",
            "KV cells up to the highest filled one, empty ones among them: a step goes through all of them.",
        )
        self.kv_fragmentation = gauge(
            "kv_cache_fragmentation_ratio", "Part of `kv_cache_width_cells` that is empty, 0 to 1."
        )
        self.kv_bytes = gauge("kv_cache_bytes", "Memory that keys and values of all KV cells take.")
        self.kv_compactions = counter(
            "kv_cache_compactions", "Times that the filled KV cells were moved together."
        )
        self.ledger_repairs = counter(
            "kv_ledger_repairs",
            "Sequences of which llama.cpp had other KV cells than the engine had counted. They were dropped, "
            "and recomputed where a request needed them.",
        )
        self.cached_sequences = gauge("prefix_cache_sequences", "Sequences that are kept as cached prefixes.")
        self.prefix_sharing = gauge(
            "prefix_cache_sharing",
            "1 for what of a computed prefix a request can begin with: full, window, checkpoints or none.",
            ("model", "kind"),
        )
        self.prefix_queries = counter("prefix_cache_queries", "Prompts that were looked up for a prefix.")
        self.prefix_hits = counter("prefix_cache_hits", "Prompts that begin with a prefix that was there.")
        self.prefix_partial_hits = counter(
            "prefix_partial_hits", "Hits that left more to compute than the prompt's last token."
        )
        self.prefix_matched_tokens = counter(
            "prefix_matched_tokens", "Prompt tokens that were not computed because they were there."
        )
        self.prefix_evictions = counter(
            "prefix_cache_evictions", "Cached prefixes that were evicted, as a whole or their last part."
        )
        self.retried_tokens = counter(
            "retried_tokens",
            "Tokens of requests that another engine process had before, prompt and answer so far.",
        )
        self.retried_found_tokens = counter(
            "retried_found_tokens",
            "Those of `retried_tokens` that were cached in any tier, and not computed again.",
        )
        self.prefill_tokens = counter(
            "engine_prefill_tokens", "Tokens that were prefilled, recomputed ones included."
        )
        self.decode_tokens = counter(
            "engine_decode_tokens", "Tokens that were decoded, each request's first not counted."
        )
        self.drafts = counter("spec_decode_num_drafts", "Drafts of next tokens that were verified.")
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Tokens that were drafted.")
        self.accepted_draft_tokens = counter(
            "spec_decode_num_accepted_tokens", "Drafted tokens that were accepted."
        )
        self.accepted_per_position = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens that were accepted, by their position in the draft: 0 is the first one.",
            ("model", "position"),
        )
        self.iteration_tokens = histogram(
            "iteration_tokens", "Tokens in one engine step, prefilled and decoded.", _TOKEN_BUCKETS
        )
        self.step_time = histogram(
            "engine_step_seconds", "Seconds of one engine step, sampling included.", _STEP_BUCKETS_S
        )
        self.deaths = counter("engine_deaths", "Engine processes that died.")
        self.stuck = counter(
            "worker_stuck_engines", "Engine processes that were killed because they made no progress."
        )
        bad = counter(
            "worker_bad_messages",
            "Messages over NATS that failed their checks and were ignored: `batch`, `command`, `cancel` or "
            "`leader`.",
            ("kind",),
        )
        self.bad = BadMessages(bad)
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
        self.flash_attention = gauge("flash_attention_enabled", "1 when flash attention is on, else 0.")

    def of(self, model: str, *, flash_attention: bool) -> ModelMetrics:
        """The metrics of one model."""
        self.flash_attention.labels(model).set(1 if flash_attention else 0)
        return ModelMetrics(self, model)


class TierMetrics:
    """Metrics of one tier of one model."""

    def __init__(self, worker: WorkerMetrics, model: str, tier: str) -> None:
        self._bytes = worker.tier_bytes.labels(model, tier)
        self._states = worker.tier_states.labels(model, tier)
        self._hits = worker.tier_hits.labels(model, tier)
        self._evictions = worker.tier_evictions.labels(model, tier)
        self._restore_time = worker.tier_restore_time.labels(model, tier)

    def observe(self, stats: engine_pb2.TierStats) -> None:
        """Take over the figures of one report."""
        self._bytes.set(stats.bytes)
        self._states.set(stats.states)
        self._hits.inc(stats.hits)
        self._evictions.inc(stats.evictions)
        for microseconds in stats.restore_us:
            self._restore_time.observe(microseconds / 1e6)


class ModelMetrics:
    """Metrics of one model, their labels bound once.

    Attributes:
        kv_cells: of the model's KV cache; 0 until they are known.
    """

    def __init__(self, worker: WorkerMetrics, model: str) -> None:
        self.kv_cells = 0
        self._requests = worker.requests.labels(model)
        self._kv_usage = worker.kv_usage.labels(model)
        self._kv_reserved = worker.kv_reserved.labels(model)
        self._parked = worker.parked.labels(model)
        self._swapped = worker.swapped.labels(model)
        self._swap_bytes = worker.swap_bytes.labels(model)
        self._tiers = {tier: TierMetrics(worker, model, tier) for tier in ("host", "disk")}
        self._swap_outs = worker.swap_outs.labels(model)
        self._swap_ins = worker.swap_ins.labels(model)
        self._recomputes = worker.recomputes.labels(model)
        self._kv_shared = worker.kv_shared.labels(model)
        self._kv_cached = worker.kv_cached.labels(model)
        self._kv_high_water = worker.kv_high_water.labels(model)
        self._kv_width = worker.kv_width.labels(model)
        self._kv_fragmentation = worker.kv_fragmentation.labels(model)
        self._kv_bytes = worker.kv_bytes.labels(model)
        self._kv_compactions = worker.kv_compactions.labels(model)
        self._ledger_repairs = worker.ledger_repairs.labels(model)
        self._cached_sequences = worker.cached_sequences.labels(model)
        self._prefix_sharing = partial(worker.prefix_sharing.labels, model)
        self._prefix_queries = worker.prefix_queries.labels(model)
        self._prefix_hits = worker.prefix_hits.labels(model)
        self._prefix_partial_hits = worker.prefix_partial_hits.labels(model)
        self._prefix_matched_tokens = worker.prefix_matched_tokens.labels(model)
        self._prefix_evictions = worker.prefix_evictions.labels(model)
        self._retried_tokens = worker.retried_tokens.labels(model)
        self._retried_found_tokens = worker.retried_found_tokens.labels(model)
        self._prefill_tokens = worker.prefill_tokens.labels(model)
        self._decode_tokens = worker.decode_tokens.labels(model)
        self._drafts = worker.drafts.labels(model)
        self._draft_tokens = worker.draft_tokens.labels(model)
        self._accepted_draft_tokens = worker.accepted_draft_tokens.labels(model)
        self._accepted_per_position = partial(worker.accepted_per_position.labels, model)
        self._iteration_tokens = worker.iteration_tokens.labels(model)
        self._step_time = worker.step_time.labels(model)
        self._deaths = worker.deaths.labels(model)
        self._stuck = worker.stuck.labels(model)
        self._index_blocks = worker.index_blocks.labels(model)
        self._index_failures = worker.index_failures.labels(model)
        self._index_losses = worker.index_losses.labels(model)

    def observe(self, stats: engine_pb2.StepStats) -> None:
        """Take over the figures of one report."""
        self._requests.set(stats.sequences)
        self._parked.set(stats.parked - stats.swapped)
        self._swapped.set(stats.swapped)
        self._swap_bytes.set(stats.swap_bytes_used)
        self._tiers["host"].observe(stats.host)
        self._tiers["disk"].observe(stats.disk)
        self._swap_outs.inc(stats.swap_outs)
        self._swap_ins.inc(stats.swap_ins)
        self._recomputes.inc(stats.recomputes)
        self._kv_shared.set(stats.kv_cells_shared)
        self._kv_cached.set(stats.kv_cells_cached)
        self._kv_high_water.set(stats.kv_cells_high_water)
        width, holes = stats.kv_cells_width, stats.kv_cells_holes
        self._kv_width.set(width)
        self._kv_fragmentation.set(holes / width if width else 0.0)
        self._kv_compactions.inc(stats.kv_compactions)
        self._cached_sequences.set(stats.cached_sequences)
        self._prefix_queries.inc(stats.prefix_queries)
        self._prefix_hits.inc(stats.prefix_hits)
        self._prefix_partial_hits.inc(stats.prefix_partial_hits)
        self._prefix_matched_tokens.inc(stats.prefix_matched_tokens)
        self._prefix_evictions.inc(stats.prefix_evictions)
        self._retried_tokens.inc(stats.retried_tokens)
        self._retried_found_tokens.inc(stats.retried_found_tokens)
        if self.kv_cells:
            self._kv_usage.set(stats.kv_cells_used / self.kv_cells)
            self._kv_reserved.set(stats.kv_cells_reserved / self.kv_cells)
        if stats.drafts:
            self._drafts.inc(stats.drafts)
            self._draft_tokens.inc(stats.draft_tokens)
            self._accepted_draft_tokens.inc(sum(stats.accepted_draft_tokens))
            for position, accepted in enumerate(stats.accepted_draft_tokens):
                self._accepted_per_position(str(position)).inc(accepted)
        if stats.step_us:
            self._prefill_tokens.inc(stats.prefill_tokens)
            self._decode_tokens.inc(stats.decode_tokens)
            self._iteration_tokens.observe(stats.prefill_tokens + stats.decode_tokens)
            self._step_time.observe(stats.step_us / 1e6)

    def cache_is(self, cells: int, n_bytes: int) -> None:
        """Cells of the model's KV cache, and what their keys and values take."""
        self.kv_cells = cells
        self._kv_bytes.set(n_bytes)

    def ledger_was_repaired(self, sequences: int) -> None:
        """The engine found KV cells that were not as it had counted them."""
        self._ledger_repairs.inc(sequences)

    def shares(self, kind: str) -> None:
        """Prefixes are shared in this way."""
        self._prefix_sharing(kind).set(1)

    def engine_died(self) -> None:
        """Count it: with the engine, all that it held is gone."""
        self._deaths.inc()
        self.observe(engine_pb2.StepStats())

    def engine_was_stuck(self) -> None:
        """Count an engine that made no progress and is killed."""
        self._stuck.inc()

    def index_written(self, blocks: int) -> None:
        """The prefix index has these blocks of this worker now."""
        self._index_blocks.set(blocks)

    def index_failed(self) -> None:
        """Redis did not answer a write to the prefix index."""
        self._index_failures.inc()

    def index_was_lost(self) -> None:
        """The prefix index was not as this worker had left it."""
        self._index_losses.inc()
