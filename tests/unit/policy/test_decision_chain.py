"""In which order backends are asked, what the first refusal does, and what no decision means."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from harness.decisions import RESERVATION, call, reservation
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from inferflux.common.calls.grpc_metadata import DECISION
from inferflux.common.contract.errors import Aborted, InvalidArgument, PermissionDenied, Unavailable
from inferflux.policy.decide.decisions.chain import Asked, Decisions
from inferflux.policy.decide.decisions.facts import PERMITTED, BackendFailed, Decision, Facts, to_message
from inferflux.policy.metrics import DecisionMetrics
from inferflux.v1 import policy_pb2


class Backend:
    """Answers as it is told to, and remembers what it was asked."""

    def __init__(self, name: str = "cedar", answer: Callable[[], Awaitable[Decision]] | None = None) -> None:
        self.name = name
        self.asked: list[Facts] = []
        self.answer = answer or permit

    async def decide(self, facts: Facts) -> Decision:
        self.asked.append(facts)
        return await self.answer()


async def permit() -> Decision:
    return PERMITTED


def refuse(reason: str) -> Callable[[], Awaitable[Decision]]:
    async def answer() -> Decision:
        return Decision(is_permitted=False, reason=reason)

    return answer


async def fail() -> Decision:
    raise BackendFailed("it is on fire")


async def hang() -> Decision:
    await asyncio.Event().wait()
    raise AssertionError


class World:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.registry = CollectorRegistry()
        self.metrics = DecisionMetrics(self.registry)

    def asked(self, backend: Backend, **options: Any) -> Asked:
        options = {"timeout_s": 5.0, "cache_s": 1.0} | options
        return Asked(backend, self.metrics, clock=lambda: self.now_s, **options)

    def count(self, outcome: str, source: str = "asked", backend: str = "cedar") -> float:
        labels = {"backend": backend, "outcome": outcome, "source": source}
        return self.registry.get_sample_value("inferflux_policy_decisions_total", labels) or 0.0


@pytest.fixture
def world() -> World:
    return World()


def passes() -> None:
    pass


async def refusal(decisions: Decisions, facts: Facts | None = None) -> PermissionDenied:
    with pytest.raises(PermissionDenied) as caught:
        await decisions.admit(facts or call(), passes)
    return caught.value


@pytest.mark.parametrize("order", ["before", "after"])
async def test_policys_own_decision_has_its_place_in_the_order(world: World, order: str) -> None:
    said: list[str] = []

    async def answer() -> Decision:
        said.append("backend")
        return PERMITTED

    asked: Sequence[Asked] = [world.asked(Backend(answer=answer))]
    decisions = Decisions(asked, []) if order == "before" else Decisions([], asked)
    await decisions.admit(call(), lambda: said.append("own"))
    assert said == (["backend", "own"] if order == "before" else ["own", "backend"])


async def test_the_first_refusal_decides_and_the_next_backends_are_not_asked(world: World) -> None:
    backends = [Backend("a"), Backend("b", refuse("not on sundays")), Backend("c", refuse("never"))]
    error = await refusal(Decisions([], [world.asked(each) for each in backends]))
    assert error.message == "b: not on sundays"
    assert error.reason == "DECISION_DENIED"
    assert error.headers == {DECISION: "b: not on sundays"}
    assert [len(each.asked) for each in backends] == [1, 1, 0]


async def test_where_policy_itself_refuses_later_backends_are_not_asked(world: World) -> None:
    backend = Backend()

    def own() -> None:
        raise PermissionDenied("no", reason="MISSING_SCOPE")

    with pytest.raises(PermissionDenied, match="no") as caught:
        await Decisions([], [world.asked(backend)]).admit(call(), own)
    assert caught.value.reason == "MISSING_SCOPE"
    assert backend.asked == []


@pytest.mark.parametrize(
    ("reason", "message", "header"),
    [
        ("", "cedar: refused", "cedar: refused"),
        ("a\r\nx-admin: 1\x00", "cedar: a  x-admin: 1", "cedar: a  x-admin: 1"),
        ("für später", "cedar: für später", "cedar: f\\xfcr sp\\xe4ter"),
        ("x" * 1000, "cedar: " + "x" * 200, "cedar: " + "x" * 200),
    ],
)
async def test_a_reason_is_told_in_one_line_of_bounded_length(
    world: World, reason: str, message: str, header: str
) -> None:
    error = await refusal(Decisions([], [world.asked(Backend(answer=refuse(reason)))]))
    assert error.message == message
    assert error.headers == {DECISION: header}


@pytest.mark.parametrize("answer", [fail, hang])
async def test_a_call_without_a_decision_is_refused(
    world: World, answer: Callable[[], Awaitable[Decision]]
) -> None:
    asked = world.asked(Backend(answer=answer), timeout_s=0.01)
    with pytest.raises(Unavailable, match="cedar has not decided") as caught:
        await Decisions([], [asked]).admit(call(), passes)
    assert caught.value.reason == "DECISION_UNAVAILABLE"
    assert "fire" not in caught.value.message
    assert world.count("failed") == 1


@pytest.mark.parametrize("answer", [fail, hang])
async def test_a_backend_that_may_fail_open_lets_a_call_pass_without_a_decision_and_the_next_is_asked(
    world: World, answer: Callable[[], Awaitable[Decision]]
) -> None:
    asked = world.asked(Backend(answer=answer), timeout_s=0.01, is_fail_open=True)
    after = Backend("opa", refuse("no"))
    with capture_logs() as logged:
        error = await refusal(Decisions([], [asked, world.asked(after)]))
    assert error.message == "opa: no"
    assert world.count("failed_open") == 1
    assert [line["log_level"] for line in logged] == ["warning"]
    assert "PERMITTED" in logged[0]["event"]


async def test_failures_are_counted_each_and_logged_not_more_often_than_every_ten_seconds(
    world: World,
) -> None:
    decisions = Decisions([], [world.asked(Backend(answer=fail), is_fail_open=True)])
    with capture_logs() as logged:
        for _ in range(50):
            await decisions.admit(call(), passes)
        world.now_s += 10
        await decisions.admit(call(), passes)
    assert [line["failures"] for line in logged] == [1, 50]
    assert world.count("failed_open") == 51


async def test_a_decision_on_equal_facts_is_used_again_until_it_is_old(world: World) -> None:
    backend = Backend(answer=refuse("no"))
    decisions = Decisions([], [world.asked(backend)])
    for _ in range(3):
        await refusal(decisions)
    assert len(backend.asked) == 1
    assert (world.count("refused"), world.count("refused", "cached")) == (1, 2)
    await refusal(decisions, call(tenant="other"))
    assert len(backend.asked) == 2
    world.now_s += 1
    await refusal(decisions)
    assert len(backend.asked) == 3


async def test_no_decision_is_not_remembered(world: World) -> None:
    backend = Backend(answer=fail)
    decisions = Decisions([], [world.asked(backend, is_fail_open=True)])
    await decisions.admit(call(), passes)
    backend.answer = refuse("no")
    await refusal(decisions)


async def test_what_was_decided_before_a_change_is_not_used_after_it(world: World) -> None:
    """Also where the answer came after the change, to a question from before."""
    release = asyncio.Event()

    async def late() -> Decision:
        await release.wait()
        return PERMITTED

    backend = Backend(answer=late)
    asked = world.asked(backend)
    question = asyncio.create_task(asked.decide(call()))
    while not backend.asked:
        await asyncio.sleep(0)
    asked.forget()
    release.set()
    assert await question is PERMITTED
    backend.answer = refuse("no")
    assert not (await asked.decide(call())).is_permitted
    asked.forget()
    backend.answer = permit
    assert (await asked.decide(call())).is_permitted


def reserve_request(**changes: Any) -> policy_pb2.ReserveRequest:
    fields: dict[str, Any] = {
        "tenant": RESERVATION.tenant,
        "key_id": RESERVATION.key_id,
        "model": RESERVATION.model,
        "priority": RESERVATION.priority,
        "prompt_tokens": RESERVATION.prompt_tokens,
        "max_tokens": RESERVATION.max_tokens,
        "facts": to_message(RESERVATION),
    }
    return policy_pb2.ReserveRequest(**(fields | changes))


async def test_at_a_reservation_every_backend_gets_the_request_and_what_its_call_was_admitted_with(
    world: World,
) -> None:
    before, after = Backend("a"), Backend("b")
    decisions = Decisions([world.asked(before)], [world.asked(after)])
    await decisions.reserve(reserve_request(text="not wanted"))
    assert before.asked == after.asked == [reservation()]


async def test_backends_that_are_to_see_texts_get_them_and_ask_for_them(world: World) -> None:
    backend = Backend()
    decisions = Decisions([], [world.asked(backend)], wants_text=True)
    with pytest.raises(Aborted) as caught:
        await decisions.reserve(reserve_request())
    assert caught.value.reason == "GUARDRAILS_NEED_TEXT"
    await decisions.reserve(reserve_request(text=""))
    assert backend.asked == [reservation(text="")]


async def test_a_request_that_was_admitted_without_backends_is_refused(world: World) -> None:
    with pytest.raises(Unavailable, match="send it again"):
        await Decisions([], [world.asked(Backend())]).reserve(reserve_request(facts=None))


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"method": "x" * 129}, "facts.method"),
        ({"method": "a\nb"}, "facts.method"),
        ({"scopes": ["s"] * 100}, "facts.scopes"),
        ({"scopes": ["s" * 65]}, "facts.scopes[0]"),
        ({"roles": ["r"] * 33}, "facts.roles"),
        ({"roles": ["r", "r" * 65]}, "facts.roles[1]"),
        ({"issuer": "i" * 20_000}, "facts.issuer"),
        ({"subject": "s" * 20_000}, "facts.subject"),
    ],
)
async def test_facts_that_are_wrong_are_refused_by_name(
    world: World, facts: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await Decisions([], [world.asked(Backend())]).reserve(
            reserve_request(facts=policy_pb2.DecisionFacts(**facts))
        )
    assert caught.value.field == field
