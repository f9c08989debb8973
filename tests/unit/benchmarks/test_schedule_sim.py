"""The scheduler's simulator: the same for a seed, with no request forgotten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import schedule_sim
from benchmarks.sim import studies
from benchmarks.sim.figures import Served, fit_exponent, jain_index, service_rates, waits
from benchmarks.sim.prompt_cache import PromptCache
from benchmarks.sim.scale import costs, one_pass
from benchmarks.sim.studies import MODES, QUICK
from benchmarks.sim.traffic import MIXED, Arrival, Arrivals, Tenant, Traffic, arrive
from benchmarks.sim.worker import WorkerModel
from benchmarks.sim.world import START_S, Setup, Stuck, World
from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.order.queue_policies import PolicyName
from inferflux.scheduler.core.types.jobs import RequestKey

pytestmark = pytest.mark.long

# Cells for two long requests or so: sequences are swapped out all the time.
TIGHT = WorkerModel(slots=4, sequences=6, kv_cells=700, swap_cells=600, context_length=700)


def run(
    setup: Setup, *, seed: int = 3, rate: float = 12.0, seconds: float = 8.0, bursty: bool = False
) -> World:
    traffic = Traffic(rate, seconds, "bursty" if bursty else "poisson", longest_tokens=200)
    return World(setup, arrive(traffic, Random(seed), start_s=START_S)).run()


def story(world: World) -> list[tuple[object, ...]]:
    return [
        (a.name, a.tenant, a.priority, a.at_s, a.placed_s, a.first_token_s, a.ended_s, a.generated)
        for a in world.requests.values()
    ]


# The world


def test_the_same_seed_tells_the_same_story() -> None:
    setup = Setup(workers=2, fairness=FairnessSettings(enable_preemption=True, max_timeslice_tokens=16))
    assert story(run(setup)) == story(run(setup))
    assert story(run(setup)) != story(run(setup, seed=4))


@pytest.mark.parametrize("policy", studies.POLICIES)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_every_request_ends_with_all_its_tokens(policy: PolicyName, mode: studies.FairnessMode) -> None:
    world = run(Setup(workers=2, model=TIGHT, policy=policy, fairness=mode.settings), bursty=True)
    assert len(world.requests) > 50
    for arrival in world.requests.values():
        assert arrival.generated == arrival.output_tokens
        assert arrival.outcome in ("stop", "length")
        assert arrival.ended_s is not None
    assert not world.core.jobs
    assert all(not worker.residents for worker in world.workers.values())


@settings(max_examples=12)
@given(
    st.integers(0, 2**32),
    st.integers(1, 8),
    st.integers(0, 8),
    st.integers(610, 2000),
    st.booleans(),
    st.sampled_from([0, 5, 32]),
)
def test_workers_of_any_shape_lose_no_request(
    seed: int, slots: int, extra: int, cells: int, preempts: bool, slice_tokens: int
) -> None:
    model = WorkerModel(
        slots=slots, sequences=slots + extra, kv_cells=cells, swap_cells=cells // 2, context_length=700
    )
    fairness = FairnessSettings(enable_preemption=preempts, max_timeslice_tokens=slice_tokens)
    world = run(Setup(workers=2, model=model, fairness=fairness), seed=seed, seconds=4.0)
    assert all(a.generated == a.output_tokens for a in world.requests.values())


def test_a_full_kv_cache_swaps_sequences_out_and_fails_none() -> None:
    fairness = FairnessSettings(enable_preemption=True, max_timeslice_tokens=16)
    world = run(Setup(workers=1, model=TIGHT, fairness=fairness))
    assert sum(worker.swaps for worker in world.workers.values()) > 0
    assert {a.outcome for a in world.requests.values()} <= {"stop", "length"}


def test_a_worker_decodes_as_fast_as_its_model_says() -> None:
    model = WorkerModel(slots=4)
    at_once = [Arrival(f"r{n}", "t", 0, START_S, 1, 401, 401) for n in range(4)]
    world = World(Setup(model=model), at_once).run()
    taken_s = max(a.ended_s or 0.0 for a in world.requests.values()) - START_S
    assert taken_s == pytest.approx(4 * 400 / model.decode_tokens_per_s, rel=0.02)


def test_a_prompt_is_computed_as_fast_as_the_model_says() -> None:
    model = WorkerModel()
    alone = Arrival("r", "t", 0, START_S, 2000, 1, 1)
    World(Setup(model=model), [alone]).run()
    steps = -(-2000 // model.prefill_budget)
    expected_s = 2000 / model.prefill_tokens_per_s + steps * model.step_s
    assert alone.first_token_wait_s == pytest.approx(expected_s, rel=0.02)


def test_a_worker_of_twice_the_speed_takes_half_the_time() -> None:
    taken_s = []
    for speed in (1.0, 2.0):
        alone = Arrival("r", "t", 0, START_S, 500, 200, 200)
        World(Setup(speeds=(speed,)), [alone]).run()
        taken_s.append((alone.ended_s or 0.0) - START_S)
    assert taken_s[0] == pytest.approx(2 * taken_s[1], rel=0.02)


def test_a_world_that_stands_still_is_noticed() -> None:
    too_slow = WorkerModel(step_s=1e6)
    with pytest.raises(Stuck, match="have not ended"):
        World(Setup(model=too_slow), [Arrival("r", "t", 0, START_S, 1, 1, 1)], patience_s=60.0).run()


def test_lost_tokens_are_noticed() -> None:
    world = World(Setup(), [])
    world.requests[RequestKey("t", "r")] = Arrival("r", "t", 0, START_S, 1, 8, 8)
    world.on_tokens(RequestKey("t", "r"), epoch=1, offset=0, tokens=2, now=START_S)
    world.on_tokens(RequestKey("t", "r"), epoch=2, offset=1, tokens=2, now=START_S)
    assert world.requests[RequestKey("t", "r")].generated == 3
    with pytest.raises(Stuck, match="lost its tokens 3 to 4"):
        world.on_tokens(RequestKey("t", "r"), epoch=2, offset=4, tokens=1, now=START_S)


# What arrives


@pytest.mark.parametrize("arrivals", ["poisson", "bursty"])
def test_arrivals_come_at_their_mean_rate_and_in_order(arrivals: Arrivals) -> None:
    traffic = Traffic(rate_per_s=50.0, duration_s=200.0, arrivals=arrivals)
    times = [a.at_s for a in arrive(traffic, Random(5))]
    assert times == sorted(times)
    assert len(times) == pytest.approx(10_000, rel=0.05)


def test_bursts_hold_most_arrivals() -> None:
    times = [a.at_s for a in arrive(Traffic(50.0, 200.0, "bursty"), Random(5))]
    in_bursts = sum(at_s % 10.0 < 2.0 for at_s in times)
    assert in_bursts / len(times) == pytest.approx(0.8, abs=0.03)


def test_tenants_and_classes_come_in_their_shares() -> None:
    arrivals = list(arrive(Traffic(100.0, 200.0), Random(5)))
    heavy = sum(a.tenant == "heavy" for a in arrivals)
    assert heavy / len(arrivals) == pytest.approx(10 / 11, abs=0.01)
    for kind in MIXED:
        these = [a for a in arrivals if a.priority == kind.priority]
        assert len(these) / len(arrivals) == pytest.approx(kind.share, abs=0.02)
        assert sum(a.prompt_tokens for a in these) / len(these) == pytest.approx(kind.prompt_tokens, rel=0.05)
    assert all(a.output_tokens <= a.max_tokens <= 2 * a.output_tokens + 1 for a in arrivals)


# Figures


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=20))
def test_jains_index_is_between_one_nth_and_one(shares: list[float]) -> None:
    assert 1 / len(shares) - 1e-9 <= jain_index(shares) <= 1 + 1e-9


def test_jains_index_knows_equal_and_unequal() -> None:
    assert jain_index([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain_index([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain_index([10.0, 1.0]) == pytest.approx(121 / 202)
    assert jain_index([0.0, 0.0]) == 1.0


@pytest.mark.parametrize("shares", [[], [1.0, -1.0]])
def test_jains_index_of_no_or_negative_shares_is_refused(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="Jain's index"):
        jain_index(shares)


@given(st.floats(-2, 2), st.floats(0.01, 100))
def test_the_exponent_of_a_power_is_found(exponent: float, factor: float) -> None:
    points = [(x, factor * x**exponent) for x in (1e3, 1e4, 3e4, 1e5)]
    assert fit_exponent(points) == pytest.approx(exponent, abs=1e-6)


@pytest.mark.parametrize("points", [[], [(1.0, 1.0)], [(2.0, 1.0), (2.0, 3.0)], [(1.0, 1.0), (2.0, 0.0)]])
def test_an_exponent_needs_two_positive_points(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="exponent"):
        fit_exponent(points)


def test_waits_are_percentiles_in_seconds() -> None:
    assert waits([1.0, 3.0, 2.0]) == {"n": 3, "p50": 2.0, "p90": 2.8, "p99": 2.98, "max": 3.0}
    assert waits([]) == {"n": 0}


def test_rates_count_only_while_all_tenants_wait() -> None:
    both = frozenset({"a", "b"})
    served = [
        Served(1.0, 1.0, {"a": 100.0, "b": 40.0}, both),
        Served(2.0, 1.0, {"a": 999.0}, frozenset({"a"})),
        Served(3.0, 1.0, {"a": 300.0}, both),
    ]
    assert service_rates(served, {"a": 2.0, "b": 1.0}) == {"a": 100.0, "b": 20.0}
    assert service_rates(served[1:2], {"a": 2.0, "b": 1.0}) == {}


# What is asked


def test_fair_serves_two_waiting_tenants_alike_and_first_come_first_served_does_not() -> None:
    scope = replace(QUICK, duration_s=20.0)
    fair = studies.compare_policy("fair", scope)
    fcfs = studies.compare_policy("fcfs", scope)
    assert 0.9 <= fair.served_ratio <= 1.1
    assert fair.jain_index > 0.99
    assert fcfs.served_ratio > 5


def test_a_tenant_of_twice_the_weight_is_served_twice_as_much() -> None:
    tenants = (Tenant("heavy", 10.0, weight=2.0), Tenant("light", 1.0))
    rates = studies.overload("fair", tenants, replace(QUICK, duration_s=20.0))
    assert rates["heavy"] / rates["light"] == pytest.approx(1.0, abs=0.1)


def test_a_flood_hardly_delays_another_tenant_and_costs_no_throughput() -> None:
    shared, in_order = studies.flood("priority", QUICK), studies.flood("fcfs", QUICK)
    assert shared.other_wait_s < in_order.other_wait_s / 10
    assert shared.tokens_per_s == pytest.approx(in_order.tokens_per_s, rel=0.01)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_aging_keeps_its_bound(mode: studies.FairnessMode) -> None:
    found = studies.starvation(mode, QUICK)
    assert found.is_kept
    assert found.overtaken_s > found.bound_s / 2, "the stream was not dense enough to try it"


def test_preemption_brings_an_urgent_request_forward() -> None:
    off, on = (studies.first_token_ratio(mode.settings, QUICK) for mode in MODES[:2])
    assert on <= 2 < off


# Conversations


@pytest.mark.parametrize("seed", range(3))
def test_hints_bring_a_conversation_back_to_its_worker_and_keep_the_load_even(seed: int) -> None:
    scope = studies.Scope(seed=seed)
    without, with_hints = (
        studies.conversations(studies.ConversationSetup(slots=16, has_hints=has_hints), scope)
        for has_hints in (False, True)
    )
    assert with_hints.computed_ratio <= 1.15 < 1.5 < without.computed_ratio
    assert max(without.load_ratio, with_hints.load_ratio) <= 1.5


@pytest.mark.parametrize("slots", [4, 8])
def test_requests_that_wait_for_their_prefix_have_less_computed_and_are_served_sooner(slots: int) -> None:
    without, waiting = (
        studies.conversations(studies.ConversationSetup(slots, has_hints=True, prefix_wait_s=wait_s), QUICK)
        for wait_s in (0.0, 5.0)
    )
    assert waiting.computed_ratio < 0.9 * without.computed_ratio
    assert waiting.first_token_s < without.first_token_s
    assert waiting.load_ratio <= 1.5


def test_a_modelled_cache_keeps_what_was_used_last_and_frees_what_is_needed() -> None:
    cache = PromptCache()
    cache.keep("acme", [1, 2, 3, 4])
    cache.keep("acme", [5, 6, 7])
    assert (cache.cells, len(cache)) == (7, 2)
    assert cache.match("acme", [1, 2, 9]) == 2
    assert cache.match("globex", [1, 2, 9]) == 0
    assert cache.use("acme", [1, 2, 9]) == 2  # used, and kept for others
    cache.shrink(1)
    assert cache.match("acme", [5, 6, 7]) == 0
    assert cache.use("acme", [1, 2, 3, 4, 5]) == 4  # taken over whole
    assert (cache.cells, len(cache)) == (0, 0)


# What it costs


def test_a_pass_fills_every_slot() -> None:
    found = one_pass(Setup(workers=5), 200, Random(1))
    assert found.placements == 5 * WorkerModel().slots
    assert found.placements_per_s > 0


def test_costs_are_told_of_each_length() -> None:
    found = costs(Setup(workers=20), [400, 800], Random(1), rounds=2)
    assert [one.queued for one in found] == [400, 800]
    assert all(second > 0 for one in found for second in one.seconds)


# The command


def test_a_quick_run_writes_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "doc.md"
    document.write_text(f"before\n{schedule_sim.BEGIN}\n{schedule_sim.END}\nafter\n")
    results = tmp_path / "sim.json"
    arguments = ["--quick", "--policy", "fair", "--json", str(results), "--write", str(document)]
    assert schedule_sim.main(arguments) == 0
    told = json.loads(results.read_text())
    assert told["placements_per_s"] > 0
    assert isinstance(told["cost_exponent"], float)
    assert set(told["jain_index"]) == {"fair"}
    assert set(told["wait_s"]) == {"0", "5", "9"}
    assert set(told["wait_s"]["9"]) == {"n", "p50", "p90", "p99", "max"}
    assert "Jain" in capsys.readouterr().out
    assert document.read_text().startswith("before\n")
    assert "placements/s" in document.read_text()
    pictures = sorted(tmp_path.glob("*.svg"))
    assert len(pictures) == 4
    assert all(picture.read_text().startswith("<svg ") for picture in pictures)


@pytest.mark.parametrize("arguments", [["--workers", "0"], ["--queued", "99"], ["--policy", "lifo"]])
def test_arguments_out_of_range_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        schedule_sim.parse(arguments)
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize("queued", [100, 1500, 5000, 200_000])
def test_lengths_end_with_the_queue_that_was_asked_for(queued: int) -> None:
    scope = schedule_sim.scope_of(schedule_sim.parse(["--queued", str(queued)]))
    assert scope.lengths[-1] == scope.queued == queued
    assert list(scope.lengths) == sorted(set(scope.lengths))
    assert len(scope.lengths) > 1
