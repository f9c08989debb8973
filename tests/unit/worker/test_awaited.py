"""Sequences wait for their adapters, and an adapter stays while a sequence has it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from harness.sequences import new_sequence

from inferflux.common.contract.errors import Unavailable
from inferflux.v1 import engine_pb2, scheduler_pb2
from inferflux.worker.engine.plan.facets import Origin
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.step.awaited import AwaitedAdapters
from inferflux.worker.engine.step.parts import Outcome
from inferflux.worker.files.adapter_digest import digest_of

REQUEST = scheduler_pb2.InferenceRequest()


class Backend:
    """Has adapters by digest."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()

    def load_adapter(self, adapter: engine_pb2.EngineAdapter) -> None:
        self.loaded.add(adapter.digest)

    def free_adapter(self, digest: str) -> None:
        self.loaded.remove(digest)


def adapter_in(folder: Path, *, digest: str = "") -> engine_pb2.EngineAdapter:
    path = folder / "adapter.gguf"
    path.write_bytes(b"weights")
    return engine_pb2.EngineAdapter(path=str(path), scale=1.0, digest=digest or digest_of(path, 1.0))


def sequence_with(digest: str, number: int = 0) -> Sequence:
    made = new_sequence(number, np.zeros(8, np.int32), prompt_tokens=4)
    made.origin = Origin(f"r{number}", adapter=digest)
    return made


def polled(part: AwaitedAdapters) -> list[Outcome]:
    """What ends once nothing is being loaded any more."""
    ends: list[Outcome] = []
    while part.adapters.is_busy:
        ends += part.poll(0.0)
        time.sleep(0.001)
    return ends


def test_a_sequence_is_held_until_its_adapter_is_loaded(tmp_path: Path) -> None:
    part, adapter = AwaitedAdapters(Backend()), adapter_in(tmp_path)
    part.adapters.begin(adapter)
    waiting, other = sequence_with(adapter.digest), sequence_with("", 1)
    part.begin(waiting, REQUEST)
    part.begin(other, REQUEST)
    assert list(part.holds) == [waiting]
    assert not polled(part)
    assert not part.holds
    step = engine_pb2.StepReport()
    assert part.has_news
    part.stats(step)
    assert [loaded.digest for loaded in step.adapters] == [adapter.digest]
    assert not part.has_news
    part.close()


def test_what_waits_for_an_adapter_that_cannot_be_loaded_ends(tmp_path: Path) -> None:
    part, adapter = AwaitedAdapters(Backend()), adapter_in(tmp_path, digest="of another file")
    part.adapters.begin(adapter)
    waiting = sequence_with(adapter.digest)
    part.begin(waiting, REQUEST)
    (ended,) = polled(part)
    assert ended.sequence is waiting
    assert isinstance(ended.error, Unavailable)
    part.close()


def test_what_waits_for_an_adapter_that_is_removed_ends(tmp_path: Path) -> None:
    part, adapter = AwaitedAdapters(Backend()), adapter_in(tmp_path)
    part.adapters.begin(adapter)
    waiting = sequence_with(adapter.digest)
    part.begin(waiting, REQUEST)
    assert [ended.sequence for ended in part.retire(adapter.digest)] == [waiting]
    part.end(waiting)
    assert not part.holds
    part.close()


def test_a_removed_adapter_is_freed_once_no_sequence_has_it_whatever_others_run(tmp_path: Path) -> None:
    backend = Backend()
    part, adapter = AwaitedAdapters(backend), adapter_in(tmp_path)
    assert not part.adapters.load_now(adapter).error
    having, other = sequence_with(adapter.digest), sequence_with("", 1)
    part.begin(having, REQUEST)
    part.begin(other, REQUEST)
    assert not part.retire(adapter.digest)
    list(part.poll(0.0))
    assert backend.loaded == {adapter.digest}
    part.end(having)
    assert part.is_busy
    list(part.poll(0.0))
    assert not backend.loaded
    assert not part.is_busy
    part.close()
