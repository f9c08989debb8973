"""What the clients of a chaos run ask."""

from __future__ import annotations

from itertools import islice

from chaos.workload import PROMPTS, Order, Whim, countdown_text, orders


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


def test_the_answer_is_known_beforehand() -> None:
    assert countdown_text(5, 3) == "5, 4, 3."
    assert Order("r", 3, 1, 0, 0).text == "3, 2, 1."
