"""What the models mean for a gateway's health."""

from __future__ import annotations

import pytest

from inferflux.common.contract.messages.hosts import chosen_digest
from inferflux.gateway.models.hosts import HostDirectory
from inferflux.gateway.models.model_health import GRACE_S, ModelHealth, ModelTally
from inferflux.v1 import host_pb2, model_pb2

REGISTERED, LOADING, READY, FAILED = (
    model_pb2.MODEL_STATE_REGISTERED,
    model_pb2.MODEL_STATE_LOADING,
    model_pb2.MODEL_STATE_READY,
    model_pb2.MODEL_STATE_FAILED,
)


def hosted(
    name: str, state: model_pb2.ModelState.ValueType, *, digest: str = "d", is_pinned: bool = False
) -> host_pb2.HostedModel:
    card = model_pb2.ModelCard(name=name, digest=digest, context_length=64)
    return host_pb2.HostedModel(card=card, state=state, is_pinned=is_pinned)


def directory(**hosts: list[host_pb2.HostedModel]) -> HostDirectory:
    made = HostDirectory()
    for host_id, models in hosts.items():
        made.note(host_pb2.HostStatus(host_id=host_id, models=models, memory_bytes=10), 0.0)
    return made


def health(tally: ModelTally, now: float = 0.0) -> ModelHealth:
    made = ModelHealth()
    made.take(tally, now)
    return made


@pytest.mark.parametrize(
    ("tally", "said"),
    [
        (ModelTally(), "no model is ready: none is known"),
        (ModelTally(loading=2, failed=1), "no model is ready: 2 loading, 1 failed"),
        (ModelTally(ready=1, failed=1), ""),
        (ModelTally(registered=1), ""),
    ],
    ids=["none", "none ready", "one ready", "one that a request has loaded"],
)
def test_a_gateway_needs_one_model_that_a_request_is_served_by(tally: ModelTally, said: str) -> None:
    assert health(tally).why_not_ready(0.0) == said


def test_a_model_that_is_away_for_a_moment_takes_no_gateway_away() -> None:
    made = health(ModelTally(ready=1), 5.0)
    made.take(ModelTally(loading=1), 6.0)
    assert made.why_not_ready(5.0 + GRACE_S - 0.1) == ""
    assert made.warning == "no model is ready"
    assert made.why_not_ready(5.0 + GRACE_S) == "no model is ready: 1 loading"
    made.take(ModelTally(ready=1), 90.0)
    assert (made.why_not_ready(90.0), made.warning) == ("", "")


def test_a_pinned_model_that_is_not_ready_is_told_while_others_serve() -> None:
    tally = directory(
        g=[hosted("a", READY), hosted("b", FAILED, is_pinned=True)], h=[hosted("c", LOADING, is_pinned=True)]
    ).tally(1.0)
    assert (tally.ready, tally.failed, tally.loading) == (1, 1, 1)
    made = health(tally)
    assert made.why_not_ready(0.0) == ""
    assert "pinned models that failed: 1" in made.warning
    assert "pinned models that are not ready yet: 1" in made.warning


def test_a_model_counts_once_by_its_best_state() -> None:
    tally = directory(g=[hosted("a", FAILED)], h=[hosted("a", READY)]).tally(1.0)
    assert tally == ModelTally(ready=1)


def test_one_name_with_two_files_is_told_and_means_the_same_file_everywhere() -> None:
    one = directory(g=[hosted("a", READY, digest="2")], h=[hosted("a", READY, digest="1")])
    other = directory(h=[hosted("a", READY, digest="1")], g=[hosted("a", READY, digest="2")])
    for hosts in (one, other):
        assert hosts.tally(1.0).mixed == ("a",)
        model = hosts.model("a", 1.0)
        assert model is not None
        assert model.card.digest == "1"
        assert [(place.host_id, place.digest) for place in model.places] == [("g", "2"), ("h", "1")]
    assert "different files on different hosts: 1" in health(one.tally(1.0)).warning


@pytest.mark.parametrize(
    ("ranked", "chosen"),
    [
        ([("b", 0), ("a", 1)], "b"),
        ([("b", 0), ("a", 0), ("b", 0)], "b"),
        ([("b", 0), ("a", 0)], "a"),
        ([("b", 0), ("a", 0), ("a", 3)], "a"),
    ],
    ids=["the best state", "on most hosts", "the first by digest", "worse places do not count"],
)
def test_which_file_a_name_means_does_not_depend_on_the_order_of_reports(
    ranked: list[tuple[str, int]], chosen: str
) -> None:
    assert chosen_digest(ranked) == chosen_digest(reversed(ranked)) == chosen


def test_a_host_in_numbers() -> None:
    hosts = directory(h=[hosted("a", READY), hosted("b", FAILED), hosted("c", FAILED)])
    (summary,) = hosts.summaries(2.0)
    assert (summary.ready, summary.failed, summary.registered) == (1, 2, 0)
    assert (summary.memory_bytes, summary.memory_used_bytes, summary.report_age_ms) == (10, 10, 2000)
    assert hosts.summaries(100.0) == []
