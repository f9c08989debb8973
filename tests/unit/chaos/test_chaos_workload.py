"""What the clients of a chaos run ask."""

from __future__ import annotations

from itertools import islice

from chaos.caller import asked
from chaos.workload import LONG_PROMPTS, PROMPTS, Order, Whim, countdown_text, orders


def some(seed: int, stream: int, n: int = 300) -> list[Order]:
    return list(islice(orders(seed, stream, tenants=3), n))


def test_the_same_seed_gives_the_same_requests_and_every_stream_its_own() -> None:
    assert some(1, 0) == some(1, 0)
    assert some(1, 0) != some(2, 0)
    assert some(1, 0) != some(1, 1)


def test_request_ids_are_unique_over_streams_and_seeds() -> None:
    ids = [order.request_id for seed in (1, 11) for stream in (0, 1, 11) for order in some(seed, stream)]
    assert len(set(ids)) == len(ids)


def test_all_prompts_priorities_tenants_and_whims_come_up() -> None:
    asked = some(1, 0)
    assert {(order.start, order.end) for order in asked} == set(PROMPTS)
    assert {order.tenant for order in asked} == {0, 1, 2}
    assert {order.whim for order in asked} == set(Whim)
    assert {0, 9} <= {order.priority for order in asked}
    assert all(order.whim is not Whim.NONE or order.whim_after == -1 for order in asked)


def test_long_prompts_come_up_where_they_are_wanted() -> None:
    asked_for = islice(orders(1, 0, tenants=3, has_long=True), 300)
    found = {(order.turns, order.start, order.end) for order in asked_for}
    assert found == {*LONG_PROMPTS, *((0, start, end) for start, end in PROMPTS)}
    assert all(order.turns == 0 for order in some(1, 0))


def test_a_long_prompt_is_a_conversation_that_goes_on() -> None:
    request = asked(Order("r", 20, 5, 0, 0, turns=4))
    assert [message.role for message in request.messages] == ["user", "assistant"] * 4 + ["user"]
    assert request.messages[-1].content == "Count down from 20 to 5."
    assert request == asked(Order("s", 20, 5, 0, 0, turns=4))


def test_the_answer_is_known_beforehand() -> None:
    assert countdown_text(5, 3) == "5, 4, 3."
    assert Order("r", 3, 1, 0, 0).text == "3, 2, 1."
