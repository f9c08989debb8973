"""Workers' rates, and the deadlines they put out of reach."""

from __future__ import annotations

from harness.scheduler_jobs import make_job
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.errors import DeadlineExceeded, from_failed
from inferflux.scheduler.core.workers.rates import ModelRates, Rates
from inferflux.v1 import scheduler_pb2


def status(
    worker_id: str, prefill: float, decode: float = 0.0, models: tuple[str, ...] = ("demo",)
) -> scheduler_pb2.WorkerStatus:
    status = scheduler_pb2.WorkerStatus(
        worker_id=worker_id, prefill_tokens_per_s=prefill, decode_tokens_per_s=decode
    )
    for model in models:
        status.models.add(name=model)
    return status


def test_a_models_rates_are_those_of_its_live_workers_together() -> None:
    rates = ModelRates()
    rates.update(status("a", 1000, 50))
    rates.update(status("b", 500, 20, models=("demo", "other")))
    assert rates.total("demo") == Rates(prefill=1500, decode=70)
    assert rates.total("other") == Rates(prefill=500, decode=20)
    rates.update(status("a", 800, 60))
    assert rates.total("demo") == Rates(prefill=1300, decode=80)
    rates.remove("b")
    rates.remove("never seen")
    assert rates.total("demo") == Rates(prefill=800, decode=60)
    assert rates.total("other") == Rates()


def test_a_worker_that_changes_its_models_is_counted_for_the_new_ones_alone() -> None:
    rates = ModelRates()
    rates.update(status("a", 1000))
    rates.update(status("a", 2000, models=("other",)))
    assert rates.total("demo") == Rates()
    assert rates.prefill_s(make_job(1, prompt=100)) == 0
    assert rates.total("other") == Rates(prefill=2000)


def test_a_rate_that_a_heartbeat_does_not_give_stays_as_it_was() -> None:
    rates = ModelRates()
    rates.update(status("a", 1000, 50))
    rates.update(status("a", 0, 0))
    assert rates.total("demo") == Rates(prefill=1000, decode=50)


def test_a_prompt_takes_as_long_as_on_the_fastest_worker_at_its_best() -> None:
    rates = ModelRates()
    job = make_job(1, prompt=1000)
    assert rates.prefill_s(job) == 0
    rates.update(status("slow", 100))
    assert rates.prefill_s(job) == 10
    rates.update(status("fast", 1000))
    assert rates.prefill_s(job) == 1
    rates.update(status("fast", 200))
    assert rates.prefill_s(job) == 1
    job.request.generated_token_ids.extend([7] * 500)  # to be computed again
    assert rates.prefill_s(job) == 1.5
    rates.remove("fast")
    assert rates.prefill_s(job) == 15


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.sets(st.sampled_from("xy"))), max_size=40
)


@given(STEPS)
def test_the_fastest_is_found_whatever_workers_come_and_go(steps: list[tuple[str, int, set[str]]]) -> None:
    rates = ModelRates()
    best: dict[str, tuple[tuple[str, ...], int]] = {}
    for worker_id, rate, served in steps:
        models = tuple(sorted(served))
        if models:
            rates.update(status(worker_id, rate, models=models))
            known_models, known = best.get(worker_id, (models, 0))
            best[worker_id] = (models, max(rate, known if known_models == models else 0))
        else:
            rates.remove(worker_id)
            best.pop(worker_id, None)
        for model in "xy":
            fastest = max((r for m, r in best.values() if model in m), default=0)
            assert rates.prefill_s(make_job(1, prompt=60, model=model)) == (60 / fastest if fastest else 0)


def test_a_deadline_is_hopeless_when_half_the_time_expected_is_too_long() -> None:
    rates = ModelRates()
    rates.update(status("a", 100))
    job = make_job(1, prompt=200, deadline_s=1003.0)  # 2 s of prefill
    assert not rates.is_hopeless(job, now=1000.0, expected_wait_s=0.0)
    assert not rates.is_hopeless(job, now=1000.0, expected_wait_s=3.9)
    assert rates.is_hopeless(job, now=1000.0, expected_wait_s=4.1)
    assert rates.is_hopeless(job, now=1002.1, expected_wait_s=0.0)


def test_however_many_tokens_may_follow_the_first_they_do_not_make_a_deadline_hopeless() -> None:
    rates = ModelRates()
    rates.update(status("a", 1000, decode=1.0))
    job = make_job(1, prompt=10, max_tokens=100_000, deadline_s=1001.0)
    assert not rates.is_hopeless(job, now=1000.0, expected_wait_s=0.0)


def test_without_a_deadline_or_a_rate_nothing_is_hopeless() -> None:
    rates = ModelRates()
    late = make_job(1, prompt=10_000, deadline_s=1000.1)
    assert not rates.is_hopeless(late, now=1000.0, expected_wait_s=1e6)
    rates.update(status("a", 0))
    assert not rates.is_hopeless(late, now=1000.0, expected_wait_s=1e6)
    rates.update(status("a", 1))
    assert rates.is_hopeless(late, now=1000.0, expected_wait_s=1e6)
    assert not rates.is_hopeless(make_job(2, prompt=10_000), now=1000.0, expected_wait_s=1e6)


def test_who_is_hopeless_is_told_what_is_left_and_what_it_would_take() -> None:
    rates = ModelRates()
    rates.update(status("a", 100))
    job = make_job(1, prompt=200, deadline_s=1000.5)
    error = from_failed(rates.unreachable(job, now=1000.0, expected_wait_s=3.0))
    assert isinstance(error, DeadlineExceeded)
    assert error.reason == "DEADLINE_UNREACHABLE"
    assert error.message == (
        "the deadline is in 0.5 s, but the first token would take about 5 s: "
        "3 s in the queue and 2 s for the prompt"
    )
