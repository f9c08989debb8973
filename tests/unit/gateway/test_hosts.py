"""Which models hosts could serve, and what a name means by what they report."""

from __future__ import annotations

from collections.abc import Sequence

from inferflux.gateway.models.hosts import LIVE_S, HostDirectory
from inferflux.v1 import host_pb2, model_pb2

REGISTERED, READY = model_pb2.MODEL_STATE_REGISTERED, model_pb2.MODEL_STATE_READY


def model(
    name: str,
    *,
    aliases: Sequence[str] = (),
    is_default: bool = False,
    state: model_pb2.ModelState.ValueType = REGISTERED,
    context_length: int = 128,
) -> host_pb2.HostedModel:
    card = model_pb2.ModelCard(name=name, digest=f"of {name}", context_length=context_length)
    return host_pb2.HostedModel(card=card, state=state, aliases=aliases, is_default=is_default)


def status(host_id: str, *models: host_pb2.HostedModel, is_leaving: bool = False) -> host_pb2.HostStatus:
    return host_pb2.HostStatus(host_id=host_id, is_leaving=is_leaving, models=models)


def directory(*statuses: host_pb2.HostStatus) -> HostDirectory:
    made = HostDirectory()
    for said in statuses:
        made.note(said, 0.0)
    return made


def test_a_name_means_itself_an_alias_its_model_and_no_name_the_default() -> None:
    hosts = directory(status("h", model("a", aliases=["x"]), model("b", is_default=True)))
    assert [hosts.resolve(name, 1.0) for name in ("a", "x", "", "unknown")] == ["a", "a", "b", "unknown"]
    assert directory(status("h", model("a"))).resolve("", 1.0) == ""


def test_a_model_of_that_name_comes_before_an_alias_on_another_host() -> None:
    for order in ((0, 1), (1, 0)):
        both = status("h", model("a", aliases=["b"])), status("g", model("b"))
        assert directory(*(both[i] for i in order)).resolve("b", 1.0) == "b"


def test_what_two_hosts_understand_by_an_alias_does_not_change_with_each_report() -> None:
    one, two = status("g", model("a", aliases=["x"])), status("h", model("b", aliases=["x"]))
    hosts = directory(one, two)
    meant = {hosts.resolve("x", 1.0)}
    for said in (one, two, one):
        hosts.note(said, 1.0)
        meant.add(hosts.resolve("x", 1.0))
    assert len(meant) == 1


def test_silent_hosts_and_those_that_leave_do_not_count() -> None:
    hosts = directory(status("h", model("a", aliases=["x"])))
    assert hosts.names(LIVE_S) == {"a"}
    for now in (LIVE_S + 0.1, 100.0):
        assert (hosts.names(now), hosts.model("a", now), hosts.resolve("x", now)) == (set(), None, "x")
    hosts.note(status("h", model("a"), is_leaving=True), 100.0)
    assert hosts.card("a", 100.0) is None
    hosts.note(status("h", model("a")), 101.0)
    assert hosts.card("a", 101.0) is not None


def test_a_report_replaces_the_one_before() -> None:
    hosts = directory(status("h", model("a"), model("b")))
    hosts.note(status("h", model("b", state=READY)), 1.0)
    assert hosts.names(1.0) == {"b"}
    assert not hosts.has_digest("of a")
    assert hosts.has_digest("of b")
    found = hosts.model("b", 1.0)
    assert found is not None
    assert (found.state, found.workers) == (READY, 1)


def test_a_model_of_unknown_limits_has_no_card() -> None:
    hosts = directory(status("h", model("a", context_length=0)))
    assert hosts.model("a", 1.0) is not None
    assert hosts.card("a", 1.0) is None
