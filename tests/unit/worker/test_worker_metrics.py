"""The metrics of a model follow what its engine reports."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from inferflux.v1 import device_pb2, engine_pb2
from inferflux.worker.metrics import ModelMetrics, WorkerMetrics


def contexts(**flash_attention: bool) -> device_pb2.DeviceContext:
    return device_pb2.DeviceContext(flash_attention_by_context=flash_attention)


class Shown:
    """The metrics of two models of one worker, and what a scrape of them says."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        worker = WorkerMetrics(self._registry)
        self.a = self._of(worker, "a", flash_attention=True)
        self.b = self._of(worker, "b", flash_attention=False)

    @staticmethod
    def _of(worker: WorkerMetrics, model: str, *, flash_attention: bool) -> ModelMetrics:
        metrics = worker.of(model)
        metrics.runs_on(contexts(main=flash_attention))
        metrics.kv_cells = 200
        return metrics

    def value(self, name: str, model: str = "a", **labels: str) -> float | None:
        return self._registry.get_sample_value(f"inferflux_{name}", {"model": model} | labels)


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_parked_and_swapped_requests_and_their_memory_are_shown(shown: Shown) -> None:
    stats = engine_pb2.StepStats(
        kv_cells_used=50,
        kv_cells_reserved=20,
        sequences=6,
        parked=5,
        swapped=2,
        swap_bytes_used=700,
        swap_outs=3,
        swap_ins=1,
        recomputes=2,
    )
    shown.a.observe(stats)
    assert shown.value("kv_cache_usage_ratio") == 0.25
    assert shown.value("kv_cache_reserved_ratio") == 0.1
    assert shown.value("worker_parked_requests") == 3
    assert shown.value("worker_swapped_requests") == 2
    assert shown.value("worker_swap_bytes") == 700
    shown.a.observe(stats)
    assert shown.value("worker_swap_outs_total") == 6
    assert shown.value("worker_swap_ins_total") == 2
    assert shown.value("worker_recomputes_total") == 4


def test_what_the_prefix_cache_holds_and_finds_is_shown(shown: Shown) -> None:
    stats = engine_pb2.StepStats(
        kv_cells_cached=30,
        kv_cells_shared=20,
        kv_cells_high_water=90,
        cached_sequences=3,
        prefix_queries=5,
        prefix_hits=4,
        prefix_partial_hits=2,
        prefix_matched_tokens=160,
        prefix_evictions=1,
    )
    shown.a.observe(stats)
    shown.a.observe(stats)
    now = {"cached_cells": 30, "shared_cells": 20, "high_water_cells": 90}
    assert {name: shown.value(f"kv_cache_{name}") for name in now} == now
    assert shown.value("prefix_cache_sequences") == 3
    assert shown.value("prefix_cache_queries_total") == 10
    assert shown.value("prefix_cache_hits_total") == 8
    assert shown.value("prefix_partial_hits_total") == 4
    assert shown.value("prefix_matched_tokens_total") == 320
    assert shown.value("prefix_cache_evictions_total") == 2


def test_how_prefixes_are_shared_is_shown(shown: Shown) -> None:
    shown.a.shares("window")
    shown.b.shares("full")
    assert shown.value("prefix_cache_sharing", "a", kind="window") == 1
    assert shown.value("prefix_cache_sharing", "b", kind="full") == 1
    assert shown.value("prefix_cache_sharing", "a", kind="full") is None


def test_only_steps_count_as_steps(shown: Shown) -> None:
    shown.a.observe(engine_pb2.StepStats(parked=1, sequences=1))
    shown.a.observe(engine_pb2.StepStats(decode_tokens=1, step_us=900))
    assert shown.value("iteration_tokens_count") == 1


def test_a_dead_engine_holds_nothing(shown: Shown) -> None:
    shown.a.observe(engine_pb2.StepStats(kv_cells_used=50, sequences=6, parked=5, swap_bytes_used=9))
    shown.a.stuck.inc()
    shown.a.engine_died()
    for name in ("kv_cache_usage_ratio", "worker_requests", "worker_parked_requests", "worker_swap_bytes"):
        assert shown.value(name) == 0
    assert shown.value("worker_stuck_engines_total") == shown.value("engine_deaths_total") == 1


def test_flash_attention_is_told_of_each_model(shown: Shown) -> None:
    assert [shown.value("flash_attention_enabled", name, context="main") for name in "ab"] == [1, 0]


def test_flash_attention_is_told_of_every_context_that_there_is(shown: Shown) -> None:
    def told() -> list[float | None]:
        names = ("main", "prefill", "draft", "deterministic")
        return [shown.value("flash_attention_enabled", context=name) for name in names]

    shown.a.runs_on(contexts(main=True, prefill=False, draft=True))
    assert told() == [1, 0, 1, None]
    shown.a.runs_on(contexts(main=False, deterministic=True))
    assert told() == [0, None, None, 1]
    assert shown.value("flash_attention_enabled", "b", context="main") == 0


def test_the_caches_memory_its_width_and_its_fragmentation_are_shown(shown: Shown) -> None:
    shown.a.cache_is(400, 96 << 20)
    stats = engine_pb2.StepStats(kv_cells_used=100, kv_cells_width=80, kv_cells_holes=20, kv_compactions=2)
    shown.a.observe(stats)
    assert shown.value("kv_cache_bytes") == 96 << 20
    assert shown.value("kv_cache_usage_ratio") == 0.25
    assert shown.value("kv_cache_width_cells") == 80
    assert shown.value("kv_cache_compactions_total") == 2
    assert shown.value("kv_cache_fragmentation_ratio") == 0.25
    shown.a.observe(engine_pb2.StepStats())
    assert shown.value("kv_cache_fragmentation_ratio") == 0


def test_repairs_of_the_ledger_are_counted(shown: Shown) -> None:
    shown.a.ledger_repairs.inc(2)
    shown.a.ledger_repairs.inc(1)
    assert shown.value("kv_ledger_repairs_total") == 3


def test_drafts_are_counted_by_position(shown: Shown) -> None:
    stats = engine_pb2.StepStats(drafts=3, draft_tokens=12, accepted_draft_tokens=[3, 2, 1])
    shown.a.observe(stats)
    shown.a.observe(stats)
    assert shown.value("spec_decode_num_drafts_total") == 6
    assert shown.value("spec_decode_num_draft_tokens_total") == 24
    assert shown.value("spec_decode_num_accepted_tokens_total") == 12
    positions = [
        shown.value("spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(3)
    ]
    assert positions == [6, 4, 2]


def test_devices_and_what_runs_on_them_are_shown(shown: Shown) -> None:
    device = device_pb2.Device(
        name="CUDA0",
        memory_total_bytes=100,
        memory_free_bytes=60,
        weights_bytes=30,
        kv_bytes=20,
        compute_bytes=10,
    )
    shown.a.runs_on(device_pb2.DeviceContext(devices=[device], gpu_layers=7))
    assert shown.value("gpu_layers") == 7
    assert shown.value("device_memory_bytes", device="CUDA0") == 100
    assert shown.value("device_memory_free_bytes", device="CUDA0") == 60
    for kind, amount in (("weights", 30), ("kv", 20), ("compute", 10)):
        assert shown.value("device_model_bytes", device="CUDA0", kind=kind) == amount
    assert shown.value("gpu_layers", "b") == 0


def test_workers_of_one_model_show_what_the_latest_report_of_any_says() -> None:
    registry = CollectorRegistry()
    worker = WorkerMetrics(registry)
    first, second = worker.of("a"), worker.of("a")
    second.observe(engine_pb2.StepStats(sequences=3, decode_tokens=3))
    first.observe(engine_pb2.StepStats(sequences=1, decode_tokens=1))
    assert registry.get_sample_value("inferflux_worker_requests", {"model": "a"}) == 1
    assert registry.get_sample_value("inferflux_engine_decode_tokens_total", {"model": "a"}) == 4
