"""The worker's metrics follow what its engine reports."""

from __future__ import annotations

from prometheus_client import REGISTRY

from inferflux.v1 import engine_pb2
from inferflux.worker.metrics import WorkerMetrics


def value(name: str, model: str) -> float | None:
    return REGISTRY.get_sample_value(f"inferflux_{name}", {"model": model})


def test_parked_and_swapped_requests_and_their_memory_are_shown() -> None:
    metrics = WorkerMetrics("shown", kv_cells=200, flash_attention=True)
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
    metrics.observe(stats)
    assert value("kv_cache_usage_ratio", "shown") == 0.25
    assert value("kv_cache_reserved_ratio", "shown") == 0.1
    assert value("worker_parked_requests", "shown") == 3
    assert value("worker_swapped_requests", "shown") == 2
    assert value("worker_swap_bytes", "shown") == 700
    metrics.observe(stats)
    assert value("worker_swap_outs_total", "shown") == 6
    assert value("worker_swap_ins_total", "shown") == 2
    assert value("worker_recomputes_total", "shown") == 4


def test_only_steps_count_as_steps() -> None:
    metrics = WorkerMetrics("steps", kv_cells=200, flash_attention=True)
    metrics.observe(engine_pb2.StepStats(parked=1, sequences=1))
    metrics.observe(engine_pb2.StepStats(decode_tokens=1, step_us=900))
    assert value("iteration_tokens_count", "steps") == 1


def test_a_dead_engine_holds_nothing() -> None:
    metrics = WorkerMetrics("dead", kv_cells=200, flash_attention=True)
    metrics.observe(engine_pb2.StepStats(kv_cells_used=50, sequences=6, parked=5, swap_bytes_used=9))
    metrics.engine_was_stuck()
    metrics.engine_died()
    for name in ("kv_cache_usage_ratio", "worker_requests", "worker_parked_requests", "worker_swap_bytes"):
        assert value(name, "dead") == 0
    assert value("worker_stuck_engines_total", "dead") == value("engine_deaths_total", "dead") == 1
