"""The simulated fleet: nothing breaks in it, and what would break is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fleet_sim
from benchmarks.sim.fleet import demand, study
from benchmarks.sim.fleet.checks import breaches
from benchmarks.sim.fleet.history import Ask, Dispatched, History, Lead
from benchmarks.sim.fleet.setup import QUICK, Fleet, Timeline
from benchmarks.sim.fleet.store import Bucket, WorkQueue
from benchmarks.sim.fleet.study import Found
from inferflux.common.contract.partitions import Partition
from inferflux.scheduler.core.order.queue_policies import PolicyName

pytestmark = pytest.mark.long

SMALL = replace(QUICK, workers=72, models=6, seconds=24.0)
POLICIES: tuple[PolicyName, ...] = ("priority", "fair")


@pytest.fixture(scope="module", params=POLICIES)
def found(request: pytest.FixtureRequest) -> Found:
    return study.run(replace(SMALL, policy=request.param))


# The run


def test_whatever_happens_each_request_ends_once_with_all_its_tokens(found: Found) -> None:
    assert found.requests > 400
    assert list(found.breaches) == []


def test_everything_that_may_end_a_lead_has_ended_one(found: Found) -> None:
    assert {one.end for one in found.takeovers} >= {"left", "killed", "zone lost", "gave it back"}
    for takeover in found.takeovers:
        assert takeover.leaderless["n"] == takeover.known["n"] > 0
        assert takeover.leaderless["max"] >= 0


def test_a_lost_zone_has_cut_streams_and_workers_have_left(found: Found) -> None:
    assert found.zone_pause["n"] > 5
    assert found.zone_recomputed > found.zone_pause["n"]
    assert found.counts["again: worker_left"] > 0


def test_urgent_requests_and_others_waited_in_each_phase(found: Found) -> None:
    assert len(found.waits) == 4
    assert all(set(by_class) == {"9", "5", "0"} for by_class in found.waits.values())


def test_every_kind_of_decision_has_its_cost(found: Found) -> None:
    kinds = {cost.name for cost in found.costs}
    assert kinds >= {"all", "answer", "event", "heartbeat", "job", "plan", "replay", "tick"}
    assert all(0 < cost.p50_us <= cost.p99_us <= cost.max_us for cost in found.costs)
    assert sum(cost.calls for cost in found.schedulers) == found.costs[-1].calls


def test_the_same_seed_tells_the_same_story() -> None:
    fleet = replace(SMALL, seconds=8.0)
    one, same, other = (study.run(each) for each in (fleet, fleet, replace(fleet, seed=2)))
    assert one.waits == same.waits
    assert one.takeovers == same.takeovers
    assert one.waits != other.waits


def test_shares_span_partitions_only_if_leaders_exchange_what_they_served() -> None:
    """Those who ask in one partition alone get as much as those who ask in all of them."""
    fleet = replace(QUICK, policy="fair", models=24, partitions=8, workers=120, seconds=60.0)
    shared = study.run(fleet)
    alone = study.run(replace(fleet, are_shares_exchanged=False))
    assert not shared.breaches
    assert not alone.breaches
    assert shared.jain_index is not None
    assert alone.jain_index is not None
    assert shared.jain_index > 0.95 > 0.85 > alone.jain_index
    assert shared.shares["wide-1"] < 1.2 < 1.8 < alone.shares["wide-1"]


# Who leads what


def test_a_scheduler_that_joins_or_leaves_moves_its_part_of_the_models() -> None:
    fleet = Fleet(partitions=32)
    for movement in study.movements(fleet):
        assert movement.mean == pytest.approx(movement.expected, rel=0.2)
        assert movement.mean < movement.most < 4 * movement.expected


def test_no_model_moves_while_the_same_schedulers_live() -> None:
    names = Fleet().scheduler_names
    assert study.moved_part(Fleet(), tuple(names), tuple(names)) == 0.0


# What is asked


def test_every_model_has_workers_in_each_zone_and_popular_ones_more() -> None:
    counts = list(Fleet().workers_of.values())
    assert sum(counts) == 10_000
    assert min(counts) >= 3
    assert counts[0] > 3 * counts[-1]


def test_local_tenants_ask_in_their_partition_alone_and_all_partitions_are_asked() -> None:
    asks = list(demand.arrive(QUICK, Timeline.of(QUICK)))
    assert [ask.at_s for ask in asks] == sorted(ask.at_s for ask in asks)
    assert all(ask.partition.has(ask.model) for ask in asks)
    local = [ask for ask in asks if ask.tenant.startswith("local-")]
    assert all(ask.tenant == demand.local_of(ask.partition.index) for ask in local)
    assert {ask.partition for ask in asks if ask.tenant == "wide-1"} == set(QUICK.models_in)


def test_a_bucket_is_written_only_over_the_revision_that_the_writer_knows() -> None:
    bucket = Bucket()
    first = bucket.write("lease", b"a", 0)
    assert first is not None
    assert bucket.write("lease", b"b", 0) is None
    assert bucket.write("lease", b"c", first) is not None
    assert bucket.get("lease")[0] == b"c"


def test_a_job_is_taken_off_its_queue_once() -> None:
    queue, ask = WorkQueue(), good_ask()
    ask.acks = 0
    queue.publish(ask)
    queue.acknowledge(ask)
    queue.acknowledge(ask)
    assert (ask.acks, len(queue), queue.all()) == (1, 0, [])


# What is found


ONE, OTHER = Partition(0, 2), Partition(1, 2)
# In the first of two partitions.
MODEL = next(f"m{n}" for n in range(9) if ONE.has(f"m{n}"))


def good_ask() -> Ask:
    return Ask("r", "t", 0, 0.0, 4, 8, 16, outcome="stop", generated=8, partition=ONE, ends=1, acks=1)


def dispatched(sent_s: float, term: int, scheduler: str) -> Dispatched:
    return Dispatched(sent_s, "w", "w-1", MODEL, ONE, term, scheduler)


def good_history() -> History:
    return History(
        asks=[good_ask()],
        dispatches=[dispatched(1.0, 5, "a"), dispatched(3.0, 6, "b")],
        leads=[Lead(ONE, 5, "a", 0.0, to_s=2.0, end="killed"), Lead(ONE, 6, "b", 2.5)],
    )


def _two_at_a_time(history: History) -> None:
    history.leads[0].to_s = 2.6


def _never_stopped(history: History) -> None:
    history.leads[0].to_s = None


def _old_term(history: History) -> None:
    history.dispatches.append(dispatched(4.0, 5, "a"))


def _same_term(history: History) -> None:
    history.dispatches.append(dispatched(4.0, 6, "c"))


def _not_its_own(history: History) -> None:
    history.dispatches.append(replace(dispatched(4.0, 6, "b"), partition=OTHER))


def _is_stuck(history: History) -> None:
    history.is_stuck = "3 requests have not ended"


def _saw(**fields: Any) -> Callable[[History], None]:
    def change(history: History) -> None:
        for name, value in fields.items():
            setattr(history.asks[0], name, value)

    return change


def test_a_good_history_has_no_breach() -> None:
    assert breaches(good_history()) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_two_at_a_time, "a and b led at a time"),
        (_never_stopped, "a and b led at a time"),
        (_old_term, "term 5 dispatched after term 6"),
        (_same_term, "b and c dispatched in term 6"),
        (_not_its_own, f"b dispatched {MODEL}"),
        (_is_stuck, "have not ended"),
        (_saw(ends=2), "ended 2 times"),
        (_saw(ends=0, outcome=""), "ended 0 times"),
        (_saw(acks=0), "was taken off the queue 0 times"),
        (_saw(generated=7), "has 7 tokens of 8"),
        (_saw(outcome="NO_WORKER"), "failed: NO_WORKER"),
        (_saw(wrongs=["lost its tokens 3 to 5"]), "lost its tokens 3 to 5"),
    ],
)
def test_what_must_not_be_is_told(change: Callable[[History], None], told: str) -> None:
    history = good_history()
    change(history)
    assert any(told in breach for breach in breaches(history))


# The command


def test_the_command_prints_tables_and_writes_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "fleet.json"
    small = ["--workers", "36", "--models", "4", "--seconds", "8"]
    assert fleet_sim.main(["--quick", *small, "--json", str(results)]) == 0
    told = json.loads(results.read_text())
    assert told["breaches"] == []
    assert told["fleet"]["workers"] == 36
    assert told["requests"] > 0
    printed = capsys.readouterr().out
    assert "Partitions without a leader" in printed
    assert "Processor time of a decision" in printed


@pytest.mark.parametrize(
    ("arguments", "told"), [(["--schedulers", "3"], "schedulers"), (["--workers", "5"], "workers")]
)
def test_a_fleet_that_cannot_be_is_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet_sim.main(["--quick", *arguments]) == 2
    assert told in capsys.readouterr().err
