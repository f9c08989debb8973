"""Which models are loaded where, in a world with hosts."""

from __future__ import annotations

import random
import string

import pytest
from harness.host_world import HELD, READY, REGISTERED, UNLOADING, HostWorld, SimModel
from harness.profiles import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.common.contract.errors import InferFluxError, Unavailable
from inferflux.common.contract.partitions import divide
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.limits import Limits
from inferflux.v1 import host_pb2

LIMITS = Limits(settle_s=0.0, model_wait_s=5.0)


def kinds(world: HostWorld) -> list[tuple[str, str]]:
    return [(told.kind, told.model) for told in world.told]


def test_a_request_for_a_model_that_a_host_knows_has_it_loaded_and_runs() -> None:
    world = HostWorld(LIMITS)
    host = world.add_host([SimModel("a"), SimModel("b")])
    key = world.ask("b")
    world.until_quiet(20)
    assert world.read(key).outcome == "length"
    assert kinds(world) == [("load", "b")]
    assert host.models["a"].state == REGISTERED


def test_many_requests_for_one_model_are_one_load() -> None:
    world = HostWorld(LIMITS)
    host = world.add_host([SimModel("a", load_s=4)])
    keys = [world.ask("a") for _ in range(6)]
    world.until_quiet(40)
    assert {world.read(key).outcome for key in keys} == {"length"}
    assert host.models["a"].loads == 1


def test_the_wait_that_is_told_has_the_load_in_it() -> None:
    world = HostWorld(LIMITS)
    world.add_host([SimModel("a", load_s=7)])
    world.second()
    key = world.ask("a")
    queued = next(chunk.queued for chunk in world.log[key] if chunk.HasField("queued"))
    assert queued.expected_wait_ms >= 6_000


def test_the_model_that_was_used_longest_ago_makes_room() -> None:
    world = HostWorld(LIMITS)
    host = world.add_host([SimModel(name) for name in "abcd"], places=3)
    for name in "abc":
        world.ask(name)
        world.until_quiet(20)
    world.ask("a")
    world.until_quiet(20)
    world.ask("d")
    world.until_quiet(20)
    assert {model.name for model in host.held()} == {"a", "c", "d"}


def test_as_many_leave_as_the_memory_needs() -> None:
    world = HostWorld(LIMITS)
    models = [SimModel("a", needs=2), SimModel("b", needs=2), SimModel("large", needs=5)]
    host = world.add_host(models, memory=6, places=3)
    for name in ("a", "b", "large"):
        world.ask(name)
        world.until_quiet(20)
    assert {model.name for model in host.held()} == {"large"}


def loaded_at(world: HostWorld, name: str) -> list[str]:
    return [host.host_id for host in world.hosts.values() if host.models[name] in host.held()]


@pytest.mark.parametrize(("zone", "expected"), [("a", "near"), ("b", "far"), ("", "far"), ("c", "far")])
def test_a_model_is_loaded_in_the_zone_it_is_asked_for_from(zone: str, expected: str) -> None:
    """From no zone, and from one without a host, the most room decides."""
    world = HostWorld(LIMITS)
    world.add_host([SimModel("m")], host_id="near", zone="a", memory=50)
    world.add_host([SimModel("m")], host_id="far", zone="b", memory=100)
    world.ask("m", zone=zone)
    world.until_quiet(20)
    assert loaded_at(world, "m") == [expected]


def test_room_is_made_in_the_zone_a_model_is_asked_for_from_where_that_disturbs_no_one_more() -> None:
    world = HostWorld(LIMITS)
    for host_id, zone in (("h1", "b"), ("h2", "a")):
        world.add_host([SimModel(f"{host_id}-old"), SimModel("m")], host_id=host_id, zone=zone, places=1)
        world.ask(f"{host_id}-old")
    world.until_quiet(20)
    world.ask("m", zone="a")
    world.until_quiet(20)
    assert loaded_at(world, "m") == ["h2"]


def test_a_far_host_with_room_is_taken_before_a_near_one_without() -> None:
    world = HostWorld(LIMITS)
    world.add_host([SimModel("old"), SimModel("m")], host_id="near", zone="a", places=1)
    world.ask("old")
    world.until_quiet(20)
    world.add_host([SimModel("m")], host_id="far", zone="b")
    world.ask("m", zone="a")
    world.until_quiet(20)
    assert loaded_at(world, "m") == ["far"]


def test_a_pinned_model_stays() -> None:
    world = HostWorld(LIMITS)
    host = world.add_host([SimModel("a", is_pinned=True), SimModel("b"), SimModel("c")], places=2)
    for name in "abcbc":
        world.ask(name)
        world.until_quiet(30)
    assert host.models["a"].loads == 1
    assert ("unload", "a") not in kinds(world)


def test_a_model_in_use_makes_room_only_after_a_while_and_its_requests_end_first() -> None:
    world = HostWorld(LIMITS)
    world.add_host([SimModel("a"), SimModel("b")], places=1)
    long = world.ask("a", max_tokens=20)
    for _ in range(4):
        world.second()
    other = world.ask("b")
    world.second()
    assert ("unload", "a") not in kinds(world)
    world.until_quiet(60)
    assert {world.read(long).outcome, world.read(other).outcome} == {"length"}
    assert world.requests[long].epoch == 1


def test_a_model_that_cannot_be_loaded_ends_its_requests_by_name() -> None:
    world = HostWorld(LIMITS)
    world.add_host([SimModel("a", failure="its tensor blk.0 is cut off"), SimModel("b")])
    key = world.ask("a")
    world.until_quiet(20)
    failed = world.log[key][-1].failed
    assert failed.reason == "MODEL_LOAD_FAILED"
    assert "blk.0 is cut off" in failed.message
    other = world.ask("b")
    # At once while it is not tried again; and then it is.
    again = world.ask("a")
    world.second()
    assert world.log[again][-1].failed.reason == "MODEL_LOAD_FAILED"
    world.until_quiet(20)
    assert world.read(other).outcome == "length"
    for _ in range(12):
        world.second()
    world.ask("a")
    world.until_quiet(20)
    assert kinds(world).count(("load", "a")) == 2


def test_a_model_that_no_room_is_large_enough_for_ends_its_requests_with_both_numbers() -> None:
    world = HostWorld(LIMITS)
    world.add_host([SimModel("a", needs=101)])
    key = world.ask("a")
    world.until_quiet(5)
    message = world.log[key][-1].failed.message
    assert "101 bytes" in message
    assert "100" in message
    assert not world.told


def test_pinned_models_in_every_place_end_requests_for_others_and_not_their_own() -> None:
    world = HostWorld(LIMITS)
    host = world.add_host([SimModel("a", is_pinned=True), SimModel("b")], places=1)
    first = world.ask("a")
    world.until_quiet(20)
    key = world.ask("b")
    world.until_quiet(5)
    assert "at most 1 models, and those stay" in world.log[key][-1].failed.message
    # An operator has it unloaded: it makes room for itself, and others may have its place meanwhile.
    host.obey(actions.CommandHost("h", "a", host_pb2.HostCommand(), "unload", ""))
    again = world.ask("a")
    world.until_quiet(20)
    assert {world.read(first).outcome, world.read(again).outcome} == {"length"}


def test_a_pinned_model_that_is_not_loaded_takes_no_room() -> None:
    world = HostWorld(LIMITS)
    world.add_host([SimModel("a", needs=60, is_pinned=True), SimModel("b", needs=60)])
    key = world.ask("b")
    world.until_quiet(20)
    assert world.read(key).outcome == "length"


def test_a_host_that_did_not_make_room_as_told_is_told_again_soon() -> None:
    world = HostWorld(LIMITS)
    host = world.add_host([SimModel("a"), SimModel("b")], places=1)
    world.ask("a")
    world.until_quiet(20)
    obey = host.obey
    refused: list[actions.CommandHost] = []

    def refuse_once(action: actions.CommandHost) -> host_pb2.HostedModel | InferFluxError:
        if action.kind == "unload" and not refused:
            refused.append(action)
            return Unavailable("no answer", reason="OUTCOME_UNKNOWN")
        return obey(action)

    host.obey = refuse_once  # type: ignore[method-assign]
    key = world.ask("b")
    world.until_quiet(20)
    assert world.read(key).outcome == "length"
    assert kinds(world) == [("load", "a"), ("unload", "a"), ("unload", "a"), ("load", "b")]


def test_a_model_that_is_loaded_and_takes_nothing_keeps_no_request_waiting() -> None:
    world = HostWorld(LIMITS)
    world.add_host([SimModel("a")])
    world.ask("a")
    world.until_quiet(20)
    world.core.commands.drain("h--a", now=world.now)
    key = world.ask("a")
    world.until_quiet(30)
    assert world.log[key][-1].failed.reason == "NO_WORKER"


def test_failures_are_forgotten_with_the_model() -> None:
    world = HostWorld(LIMITS)
    host = world.add_host([SimModel("a", failure="cut off")])
    world.ask("a")
    world.until_quiet(20)
    assert world.core._residency._failures
    del host.models["a"]
    world.second()
    assert not world.core._residency._failures


def test_an_unused_model_leaves_after_its_hosts_time() -> None:
    world = HostWorld(LIMITS)
    host = world.add_host([SimModel("a"), SimModel("b", is_pinned=True)])
    host.idle_s = 10.0
    for name in "ab":
        world.ask(name)
    world.until_quiet(20)
    for _ in range(14):
        world.second()
    assert host.models["a"].state == REGISTERED
    assert host.models["b"].state == READY
    assert world.told[-1] == actions.CommandHost("h", "a", world.told[-1].command, "unload", "idle")


def test_a_scheduler_of_some_models_unloads_no_others() -> None:
    own = next(partition for partition in divide(2) if partition.has("a"))
    other = next(name for name in string.ascii_lowercase if not own.has(name))
    world = HostWorld(LIMITS, partition=own)
    host = world.add_host([SimModel("a"), SimModel(other)], places=1)
    host.models[other].state = READY
    world.ask("a")
    for _ in range(20):
        world.second()
    assert not world.told


def test_a_host_that_falls_silent_is_not_asked() -> None:
    world = HostWorld(LIMITS)
    world.add_host([SimModel("a")])
    world.add_host([SimModel("a")], host_id="silent")
    world.hosts["silent"].report = lambda: None  # type: ignore[method-assign]
    for _ in range(6):
        world.second()
    world.ask("a")
    world.until_quiet(20)
    assert {told.host_id for told in world.told} == {"h"}


@settings(max_examples=examples(60), deadline=None)
@given(
    n_models=st.integers(2, 6),
    places=st.integers(1, 3),
    memory=st.integers(3, 8),
    seed=st.integers(0, 1 << 16),
    data=st.data(),
)
def test_every_request_is_served_and_no_host_holds_more_than_it_may(
    n_models: int, places: int, memory: int, seed: int, data: st.DataObject
) -> None:
    chance = random.Random(seed)
    world = HostWorld(LIMITS)
    models = [
        SimModel(f"m{i}", needs=data.draw(st.integers(1, 3)), load_s=data.draw(st.integers(1, 4)))
        for i in range(n_models)
    ]
    host = world.add_host(models, memory=memory, places=places)
    keys = []
    for _ in range(40):
        if chance.random() < 0.6:
            name = f"m{min(int(chance.expovariate(0.8)), n_models - 1)}"
            keys.append(world.ask(name, max_tokens=chance.randint(1, 6)))
        world.second()
        held = [model for model in models if model.state in HELD]
        assert len(held) <= places
        assert sum(model.needs for model in held) <= memory
    world.until_quiet(400)
    assert all(world.read(key).outcome == "length" for key in keys)
    # Without requests nothing is loaded or unloaded.
    n_told = len(world.told)
    for _ in range(20):
        world.second()
    assert len(world.told) == n_told
    assert all(model.state in (*HELD, REGISTERED) for model in host.models.values())


@pytest.mark.parametrize("seed", range(3))
def test_twenty_models_and_room_for_three(seed: int) -> None:
    """By Zipf's law; the longest wait is bounded by the turns of the others."""
    chance = random.Random(seed)
    world = HostWorld(LIMITS)
    models = [SimModel(f"m{i}") for i in range(20)]
    world.add_host(models, places=3)
    weights = [1 / (i + 1) for i in range(20)]
    keys = []
    for _ in range(200):
        asked = chance.choices(models, weights, k=chance.randint(0, 1))
        keys += [world.ask(model.name, max_tokens=chance.randint(1, 8)) for model in asked]
        world.second()
    world.until_quiet(1000)
    assert {world.read(key).outcome for key in keys} == {"length"}


def test_a_model_that_never_leaves_holds_up_no_other_one_for_long() -> None:
    world = HostWorld(LIMITS)
    host = world.add_host([SimModel(f"m{i}", load_s=1) for i in range(8)], places=3)
    for name in ("m0", "m1", "m2"):
        world.ask(name)
    world.until_quiet(60)
    stuck = host.models["m0"]
    host.keeps = "m0"
    keys = [world.ask(f"m{i}") for i in range(3, 8)]
    world.until_quiet(400)
    assert {world.read(key).outcome for key in keys} == {"length"}
    assert stuck.state == UNLOADING
