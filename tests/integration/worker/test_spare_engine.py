"""An engine process that is started ahead."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from harness.children import has_ended

from inferflux.worker.processes.engine_process import EMBEDDER, ENGINE, EngineProcess, SpareEngine


@pytest.fixture
def engines() -> Iterator[SpareEngine]:
    made = SpareEngine()
    yield made
    made.close()


def running() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if {ENGINE, EMBEDDER} & set(child.cmdline()) and not has_ended(child)]


def test_a_spare_engine_is_taken_once(engines: SpareEngine) -> None:
    engines.prepare()
    engines.prepare()
    (spare,) = running()
    taken = engines.take(ENGINE)
    other = engines.take(ENGINE)
    assert taken.process.pid == spare.pid
    assert other.process.pid != spare.pid
    for each in (taken, other):
        each.discard()
    assert not running()


def test_one_of_another_kind_is_started_anew(engines: SpareEngine) -> None:
    engines.prepare()
    (spare,) = running()
    embedder = engines.take(EMBEDDER)
    assert embedder.process.pid != spare.pid
    embedder.discard()
    engines.close()
    assert not running()


def test_one_that_has_died_is_replaced(engines: SpareEngine) -> None:
    engines.prepare()
    (spare,) = running()
    spare.kill()
    psutil.wait_procs([spare], timeout=10)
    taken = engines.take(ENGINE)
    assert taken.process.poll() is None
    taken.discard()


def test_a_process_ends_with_its_lifeline() -> None:
    engine = EngineProcess.start(ENGINE)
    engine.socket.close()
    engine.close()
    assert engine.process.wait(30) == 0
