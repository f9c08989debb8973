"""Random faults that can be had again."""

from __future__ import annotations

import itertools

import pytest
from chaos.schedule import Action, Fault, plan

PROCESSES = ["nats", "valkey", "policy", "worker-0", "gateway", "leader", "standby"]
TARGETS = [*PROCESSES, "engine of worker-0", "disk of worker-0", "tokenizer of gateway"]
OF_ROLES = ["pieces", "requests", "requests of worker-0", "transfer of worker-0"]
OF_PROCESSES = (Action.KILL, Action.STOP, Action.PAUSE)
OF_DISKS = (Action.TEAR, Action.SPOIL, Action.FILL)
SEEDS = range(30)


def ends_s(fault: Fault) -> float:
    return fault.at_s + fault.lasts_s


def test_the_same_seed_gives_the_same_faults_and_another_seed_others() -> None:
    assert plan(7, 120, TARGETS) == plan(7, 120, TARGETS)
    assert plan(7, 120, TARGETS) != plan(8, 120, TARGETS)


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    short = plan(7, 60, TARGETS)
    assert plan(7, 120, TARGETS)[: len(short)] == short


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_is_back_before_the_end(seed: int) -> None:
    faults = plan(seed, 60, TARGETS)
    assert faults == sorted(faults, key=lambda fault: fault.at_s)
    assert all(ends_s(fault) < 60 for fault in faults)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_process_is_left_alone_until_it_had_time_to_come_back(seed: int) -> None:
    by_process: dict[str, list[Fault]] = {}
    for fault in plan(seed, 300, TARGETS):
        by_process.setdefault(fault.target.rpartition(" of ")[2], []).append(fault)
    for faults in by_process.values():
        assert all(after.at_s >= ends_s(fault) + 4.9 for fault, after in itertools.pairwise(faults))


def test_every_process_is_killed_stopped_and_paused_sooner_or_later() -> None:
    seen = {(fault.target, fault.action) for seed in SEEDS for fault in plan(seed, 120, TARGETS)}
    of_disks = {("disk of worker-0", action) for action in OF_DISKS}
    assert seen == of_disks | {(process, action) for process in PROCESSES for action in OF_PROCESSES} | {
        ("engine of worker-0", Action.KILL),
        ("engine of worker-0", Action.PAUSE),
        ("tokenizer of gateway", Action.KILL),
    }


def test_state_on_its_way_meets_all_that_may_happen_to_it() -> None:
    seen = {(fault.target, fault.action) for seed in SEEDS for fault in plan(seed, 120, OF_ROLES)}
    of_transfers = (Action.TEAR, Action.KILL, Action.STOP, Action.PAUSE, Action.FILL)
    assert seen == {("transfer of worker-0", action) for action in of_transfers} | {
        ("pieces", Action.SPOIL),
        ("pieces", Action.FILL),
        ("requests", Action.MOVE),
        ("requests of worker-0", Action.DRAIN),
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_pauses_are_between_half_a_second_and_five(seed: int) -> None:
    pauses = [fault.lasts_s for fault in plan(seed, 120, TARGETS) if fault.action is Action.PAUSE]
    assert all(0.5 <= lasts_s <= 5 for lasts_s in pauses)


def test_too_short_a_run_has_no_faults() -> None:
    assert plan(1, 5, TARGETS) == []


def test_faults_are_counted_by_kind() -> None:
    kinds = [Fault(0, target, Action.KILL, 0).kind for target in TARGETS]
    assert kinds == [
        "nats",
        "valkey",
        "policy",
        "worker",
        "gateway",
        "leader",
        "standby",
        "engine",
        "disk",
        "tokenizer",
    ]
