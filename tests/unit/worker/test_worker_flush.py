"""A worker that stops has its engine put KV state on disk, and does not wait for that in vain."""

from __future__ import annotations

import asyncio

import pytest
from harness.worker_world import ScriptedEngine, model_host

from inferflux.v1 import engine_pb2
from inferflux.worker.host.model_worker import flush_limit_s
from inferflux.worker.model.model_host import ModelHost


@pytest.mark.parametrize(
    ("drain_limit_s", "left_s", "limit_s"),
    [(30, 30, 7.5), (30, 5, 5), (30, 0, 1), (30, -3, 1), (2, 1.9, 0.5), (2, 0, 0.5), (0, 0, 0)],
)
def test_a_flush_takes_a_part_of_the_drain_limit(drain_limit_s: float, left_s: float, limit_s: float) -> None:
    assert flush_limit_s(drain_limit_s, left_s) == limit_s


class Bus:
    async def publish(self, subject: str, payload: bytes) -> None: ...


async def a_model(*, disk_bytes: int = 1 << 20) -> tuple[ModelHost, ScriptedEngine]:
    host, engine = model_host(Bus())
    host._options.engine.disk_path = "/kv"
    host._options.engine.disk_bytes = disk_bytes
    ready = engine_pb2.EngineReady(slots=4, kv_cells=100, context_length=100, vocabulary_size=100)
    await host.on_report(engine_pb2.EngineReport(ready=ready))
    return host, engine


async def test_a_flush_lasts_until_the_engine_has_answered() -> None:
    host, engine = await a_model()
    host.hand_over()
    flushing = asyncio.create_task(host.flush(20.0))
    await asyncio.sleep(0)
    assert [command.flush.limit_ms for command in engine.sent] == [20_000]
    assert not flushing.done()
    flushed = engine_pb2.EngineFlushed(states=1, bytes=100)
    await host.on_report(engine_pb2.EngineReport(flushed=flushed))
    await asyncio.wait_for(flushing, 20.0)


async def test_a_flush_ends_with_its_engine() -> None:
    host, _ = await a_model()
    flushing = asyncio.create_task(host.flush(3600.0))
    await asyncio.sleep(0)
    await host.on_engine_death("killed")
    await asyncio.wait_for(flushing, 20.0)
    await host.flush(3600.0)  # there is no engine


async def test_without_a_disk_or_time_nothing_is_flushed() -> None:
    host, engine = await a_model(disk_bytes=0)
    await host.flush(3600.0)
    host, engine = await a_model()
    await host.flush(0.0)
    assert not engine.sent
