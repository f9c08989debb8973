"""Ending an engine, whatever it is at."""

from __future__ import annotations

import asyncio

import pytest

from inferflux.v1 import engine_pb2
from inferflux.worker.processes import engine_host
from inferflux.worker.processes.engine_host import EngineHost, EngineLoadError


class DyingHost(EngineHost):
    """Its engine was ready once and dies whenever it is started."""

    async def _run_once(self) -> tuple[bool, str, str]:
        self._was_ready = True
        return False, "it died", ""


async def test_stopping_does_not_wait_for_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_host, "_LONGEST_BACKOFF_S", 3600.0)
    monkeypatch.setattr(engine_host, "_FIRST_BACKOFF_S", 3600.0)
    died = asyncio.Event()

    async def on_report(_report: engine_pb2.EngineReport) -> None:
        raise AssertionError("there is nothing to report")

    async def on_death(_why: str, _killer: str) -> None:
        died.set()

    host = DyingHost(engine_pb2.EngineConfig(), on_report, on_death, load_limit_s=60.0)
    hosting = asyncio.create_task(host.run())
    await died.wait()
    await asyncio.sleep(0)
    await host.stop()
    await asyncio.wait_for(hosting, 10)


async def test_a_model_that_loads_no_more_is_given_up_after_some_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_host, "_FIRST_BACKOFF_S", 0.0)
    deaths: list[str] = []

    async def on_report(_report: engine_pb2.EngineReport) -> None:
        raise AssertionError("there is nothing to report")

    async def on_death(why: str, _killer: str) -> None:
        deaths.append(why)

    host = DyingHost(engine_pb2.EngineConfig(), on_report, on_death, load_limit_s=60.0)
    with pytest.raises(EngineLoadError, match="it died"):
        await host.run()
    assert deaths == ["it died"] * 5
