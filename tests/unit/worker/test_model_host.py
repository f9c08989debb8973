"""Models of one worker share its connection to NATS, and nothing else."""

from __future__ import annotations

import pytest
from harness.worker import batch_item
from harness.worker_world import ScriptedEngine, model_host
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from inferflux.common.contract import subjects
from inferflux.v1 import device_pb2, engine_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.host.heartbeat import Heartbeat
from inferflux.worker.metrics import WorkerMetrics
from inferflux.worker.model.emit import Emitter
from inferflux.worker.model.model_host import ModelHost
from inferflux.worker.model.residents import Refused
from inferflux.worker.model.worker_state import WorkerState


class Bus:
    """Keeps what is published."""

    is_connected = True

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []

    async def publish(self, subject: str, payload: bytes) -> None:
        self.published.append((subject, payload))

    def events(self) -> list[scheduler_pb2.WorkerEvent]:
        found = (data for to, data in self.published if to == subjects.SCHEDULER_EVENTS)
        return [scheduler_pb2.WorkerEvent.FromString(data) for data in found]


class TwoModels:
    """A worker's two models, their engines, and all that is seen of them outside."""

    def __init__(self) -> None:
        self.bus = Bus()
        self.changes = 0
        self._registry = CollectorRegistry()
        metrics = WorkerMetrics(self._registry)
        emitter = Emitter(self.bus, dict)  # type: ignore[arg-type]
        made = [
            model_host(self.bus, name=name, emitter=emitter, metrics=metrics, on_change=self._on_change)
            for name in ("a", "b")
        ]
        self.hosts: tuple[ModelHost, ...]
        self.engines: tuple[ScriptedEngine, ...]
        self.hosts, self.engines = zip(*made, strict=True)

    async def _on_change(self) -> None:
        self.changes += 1

    async def ready(self, *, kv_cells: tuple[int, int] = (1000, 1000)) -> None:
        for host, cells in zip(self.hosts, kv_cells, strict=True):
            ready = engine_pb2.EngineReady(slots=4, kv_cells=cells, context_length=cells, vocabulary_size=100)
            await host.on_report(engine_pb2.EngineReport(ready=ready))

    def value(self, name: str, model: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"inferflux_{name}", {"model": model} | labels)


@pytest.fixture
def worker() -> TwoModels:
    return TwoModels()


def step(**fields: object) -> engine_pb2.EngineReport:
    return engine_pb2.EngineReport(step=engine_pb2.StepReport(**fields))  # type: ignore[arg-type]


async def test_each_model_has_the_limits_of_its_own_engine(worker: TwoModels) -> None:
    a, b = worker.hosts
    await worker.ready(kv_cells=(1000, 20))
    a.take_up(batch_item("r", model="a", max_tokens=50))
    with pytest.raises(Refused, match="20 in all"):
        b.take_up(batch_item("r", model="b", max_tokens=50))
    assert [len(engine.sent) for engine in worker.engines] == [1, 0]
    assert (a.card.context_length, b.card.context_length) == (1000, 20)


async def test_a_model_loads_while_another_serves(worker: TwoModels) -> None:
    a, b = worker.hosts
    ready = engine_pb2.EngineReady(slots=4, kv_cells=1000, context_length=1000, vocabulary_size=100)
    await a.on_report(engine_pb2.EngineReport(ready=ready))
    assert (a.is_ready, b.is_ready, b.why_not_ready) == (True, False, "loading the model")
    a.take_up(batch_item("r", model="a"))
    with pytest.raises(Refused, match="not ready"):
        b.take_up(batch_item("r", model="b"))


async def test_a_request_is_known_to_its_own_model_alone(worker: TwoModels) -> None:
    a, b = worker.hosts
    await worker.ready()
    a.take_up(batch_item("r", model="a"))
    b.deschedule(worker_pb2.Deschedule(tenant="t", request_id="r", epoch=1))
    b.drop(worker_pb2.DropRequest(tenant="t", request_id="r", epoch=1))
    b.cancel(scheduler_pb2.CancelNotice(tenant="t", request_id="r"), now=0.0)
    with pytest.raises(Refused):
        b.resume(batch_item("r", model="b"))
    assert not worker.engines[1].sent
    await b.on_report(step(emissions=[engine_pb2.Emission(key="t.r", epoch=1, chunk=b"of no request")]))
    assert worker.bus.published == []
    assert [len(host.residents) for host in worker.hosts] == [1, 0]


async def test_figures_of_one_model_do_not_show_in_the_other(worker: TwoModels) -> None:
    a, b = worker.hosts
    await worker.ready()
    stats = engine_pb2.StepStats(kv_cells_used=500, sequences=3, decode_tokens=3, step_us=1000)
    await a.on_report(step(stats=stats))
    assert (a.stats.kv_cells_used, b.stats.kv_cells_used) == (500, 0)
    assert (a.rates.decode, b.rates.decode) == (3000.0, 0.0)
    for name, of_a in (
        ("kv_cache_usage_ratio", 0.5),
        ("worker_requests", 3),
        ("engine_decode_tokens_total", 3),
    ):
        assert (worker.value(name, "a"), worker.value(name, "b")) == (of_a, 0)


async def test_contexts_that_an_engine_makes_or_gives_up_later_are_told(worker: TwoModels) -> None:
    a, _ = worker.hosts
    usual = {"main": True, "draft": True}
    ready = engine_pb2.EngineReady(
        slots=1, device_context=device_pb2.DeviceContext(flash_attention_by_context=usual)
    )
    await a.on_report(engine_pb2.EngineReport(ready=ready))
    await a.on_report(step(flash_attention_by_context=usual | {"deterministic": True}))
    assert worker.value("flash_attention_enabled", "a", context="deterministic") == 1
    await a.on_report(step(draft_model_error="out of memory"))
    assert a.device_context is not None
    assert dict(a.device_context.flash_attention_by_context) == {"main": True, "deterministic": True}
    assert worker.value("flash_attention_enabled", "a", context="draft") is None
    assert worker.value("flash_attention_enabled", "b", context="main") is None


async def test_heartbeats_say_how_prefixes_are_shared_and_why(worker: TwoModels) -> None:
    a, _ = worker.hosts
    heartbeat = Heartbeat(worker.bus, WorkerState("w", "i"), a)  # type: ignore[arg-type]
    assert heartbeat.status(0.0).prefix_sharing == scheduler_pb2.PREFIX_SHARING_UNSPECIFIED
    ready = engine_pb2.EngineReady(
        slots=4,
        kv_cells=1000,
        prefix_sharing=scheduler_pb2.PREFIX_SHARING_CHECKPOINTS,
        prefix_sharing_reason="it keeps a state",
    )
    await a.on_report(engine_pb2.EngineReport(ready=ready))
    status = heartbeat.status(0.0)
    assert status.prefix_sharing == scheduler_pb2.PREFIX_SHARING_CHECKPOINTS
    assert status.prefix_sharing_reason == "it keeps a state"
    assert worker.value("prefix_cache_sharing", "a", kind="checkpoints") == 1


async def test_heartbeats_say_what_was_found_in_the_cache_since_the_worker_began(worker: TwoModels) -> None:
    """Also when the engine was another then."""
    a, _ = worker.hosts
    await worker.ready()
    stats = engine_pb2.StepStats(prefix_queries=3, prefix_hits=2, prefix_matched_tokens=100)
    stats.host.MergeFrom(engine_pb2.TierStats(bytes=500, states=3, hits=1))
    stats.disk.MergeFrom(engine_pb2.TierStats(bytes=900, states=4, hits=2))
    await a.on_report(step(stats=stats))
    await a.on_engine_death("killed")
    await a.on_report(step(stats=stats))
    state = WorkerState("w", "i", pool="gold", zone="north", role=scheduler_pb2.WORKER_ROLE_DECODE)
    status = Heartbeat(worker.bus, state, a).status(0.0)  # type: ignore[arg-type]
    assert (status.pool, status.zone) == ("gold", "north")
    assert status.role == scheduler_pb2.WORKER_ROLE_DECODE
    assert (status.prefix_queries, status.prefix_hits, status.prefix_matched_tokens) == (6, 4, 200)
    assert status.host_tier == scheduler_pb2.TierUse(bytes=500, states=3, hits=2)
    assert status.disk_tier == scheduler_pb2.TierUse(bytes=900, states=4, hits=4)


async def test_the_death_of_one_engine_takes_only_its_own_requests(worker: TwoModels) -> None:
    a, b = worker.hosts
    await worker.ready()
    a.take_up(batch_item("on-a", model="a"))
    b.take_up(batch_item("on-b", model="b"))
    changes = worker.changes
    await a.on_engine_death("the engine was ended by SIGKILL")
    (event,) = worker.bus.events()
    assert [r.request_id for r in event.engine_died.residents] == ["on-a"]
    assert (a.is_ready, a.why_not_ready) == (False, "the engine was ended by SIGKILL")
    assert (b.is_ready, len(b.residents)) == (True, 1)
    assert (worker.value("engine_deaths_total", "a"), worker.value("engine_deaths_total", "b")) == (1, 0)
    assert worker.changes == changes + 1


async def test_waiting_for_one_model_does_not_wait_for_the_other(worker: TwoModels) -> None:
    a, b = worker.hosts
    await worker.ready()
    a.take_up(batch_item("r", model="a"))
    await b.until_none_runs()
    assert a.residents.has_running


async def test_repairs_of_the_kv_ledger_are_counted_and_logged_once_with_names() -> None:
    two = TwoModels()
    await two.ready()
    found = ["10 cells were counted for seq_id 3, llama.cpp has none (request t.a)", "another"]
    with capture_logs() as lines:
        for repairs in (found, []):
            step = engine_pb2.StepReport(ledger_repairs=repairs)
            await two.hosts[0].on_report(engine_pb2.EngineReport(step=step))
    (line,) = lines
    assert (line["log_level"], line["model"], line["found"]) == ("error", "a", found)
    assert two.value("kv_ledger_repairs_total", "a") == 2
    assert two.value("kv_ledger_repairs_total", "b") == 0


async def test_memory_types_and_width_of_the_kv_cache_are_in_the_heartbeat() -> None:
    bus = Bus()
    state = WorkerState("w", "i")
    host, _ = model_host(bus, state=state)
    ready = engine_pb2.EngineReady(slots=4, kv_cells=1000, kv_bytes=4096000, context_length=1000)
    await host.on_report(engine_pb2.EngineReport(ready=ready))
    stats = engine_pb2.StepStats(kv_cells_width=700, kv_cells_holes=70)
    await host.on_report(engine_pb2.EngineReport(step=engine_pb2.StepReport(stats=stats)))
    status = Heartbeat(bus, state, host).status(0.0)  # type: ignore[arg-type]
    assert (status.kv_bytes, status.kv_types) == (4096000, "f16")
    assert (status.kv_cells_width, status.kv_cells_holes) == (700, 70)
    await host.on_engine_death("it died")
    assert Heartbeat(bus, state, host).status(0.0).kv_cells_width == 0  # type: ignore[arg-type]
