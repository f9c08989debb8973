"""What an engine's trials have found goes to the next engine of the same model and configuration."""

from __future__ import annotations

import pytest

from inferflux.v1 import engine_pb2
from inferflux.worker.engine.kv.compaction import MoveCost
from inferflux.worker.engine.kv.prefix_sharing import PrefixSharing, Sharing
from inferflux.worker.engine.llama.trials import Timing, Trials, known_trials
from inferflux.worker.host.model_setup import with_trials

FOUND = Trials(
    1024,
    PrefixSharing(Sharing.WINDOW, "a window", 64),
    cuts_states=True,
    prefill_works=True,
    prefill_error="why",
    timings=[Timing(16, 0, 0.25), Timing(0, 1, 0.125, in_prefill_context=True)],
    single_thread_tokens=3,
    cell_s=1e-9,
    move_cost=MoveCost(0.5, 0.25),
    row_times={1: 0.5, 8: 0.75},
    constraint_error="",
)


def config(**fields: object) -> engine_pb2.EngineConfig:
    return engine_pb2.EngineConfig(model_path="/m/a.gguf", model_digest="d", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("found", [FOUND, Trials(1024)], ids=["all", "nothing"])
def test_trials_come_back_as_they_were(found: Trials) -> None:
    again = known_trials(config(trials=found.to_message()), 1024)
    assert again is not None
    assert list(again.timings) == list(found.timings)
    again.timings = found.timings
    assert again == found


def test_trials_of_a_cache_of_another_size_do_not_count() -> None:
    assert known_trials(config(trials=FOUND.to_message()), 2048) is None
    assert known_trials(config(), 1024) is None


def test_trials_go_to_an_engine_of_the_same_configuration_alone() -> None:
    before = config(worker_id="h", disk_path="/a", trials=FOUND.to_message())
    assert with_trials(config(worker_id="h--1", disk_path="/b"), before).trials == before.trials
    for other in (config(threads=2), config(kv_cells=7)):
        assert not with_trials(other, before).HasField("trials")
    other = config()
    other.model_digest = "another"
    assert not with_trials(other, before).HasField("trials")
    assert not with_trials(config(), None).HasField("trials")
