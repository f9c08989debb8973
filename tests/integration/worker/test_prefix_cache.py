"""Cached prefixes with llama.cpp itself: the same answers, and every cell accounted for.

Answers are compared on one thread. On several, llama.cpp divides the attention of a step of one row among
them by cells, from 512 cells on, so that its last bits depend on which cells a sequence has.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from harness.serving import Served, load
from harness.worker import batch_item

from inferflux.v1 import worker_pb2
from inferflux.worker.engine.llama.native import Backend

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 5},
    "penalised": {"temperature": 1.0, "repeat_penalty": 1.3, "frequency_penalty": 0.5, "seed": 6},
}
Draw = np.random.Generator


@functools.cache
def demo() -> Backend:
    return load()


@pytest.fixture
def served() -> Served:
    demo()._main.clear()
    return Served(demo())


def prompt(draw: Draw, n: int) -> list[int]:
    return [int(token) for token in draw.integers(300, 2000, n)]


def without(item: worker_pb2.BatchItem) -> list[int]:
    """What a request is answered without a cache, in an engine of its own."""
    demo()._main.clear()
    alone = Served(demo(), has_prefix_cache=False)
    alone.run(item)
    demo()._main.clear()
    return alone.tokens[item.request.request_id]


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_answers_are_the_same_with_a_prefix_and_without(kind: str) -> None:
    """Prompts of 40 tokens are computed in a step of 40 rows, with a hit in one of 1, 10 or 40: these are
    computed alike row by row. Decoding takes steps of one row, or of four."""
    draw = np.random.default_rng(3)
    beginning = prompt(draw, 30)
    prompts = {"same": beginning + prompt(draw, 10), "branch": beginning + prompt(draw, 10)}
    made = {
        name: functools.partial(batch_item, name, prompt=ids, max_tokens=60, **SAMPLINGS[kind])
        for name, ids in prompts.items()
    }
    expected = {name: without(make()) for name, make in made.items()}
    served = Served(demo())
    served.run(batch_item("first", prompt=prompts["same"], max_tokens=60, **SAMPLINGS[kind]))
    assert served.tokens["first"] == expected["same"]
    for name, make in made.items():
        served.run(make())
        assert served.tokens[name] == expected[name]
    assert served.cached == {"first": 0, "same": 39, "branch": 30}
    served.tokens.clear()
    served.run(*(make() for make in made.values()))
    assert served.tokens == expected
    served.check_cells()


def test_a_conversation_goes_on_from_its_last_turn_and_branches(served: Served) -> None:
    draw = np.random.default_rng(4)
    first = prompt(draw, 50)
    served.run(batch_item("one", prompt=first, max_tokens=20))
    second = first + served.tokens["one"] + prompt(draw, 20)
    served.run(
        batch_item("two", prompt=second, max_tokens=5), batch_item("other", prompt=second[:60], max_tokens=5)
    )
    assert served.cached["two"] == 69, "the last token of an answer is not computed"
    assert served.cached["other"] == 59
    assert served.tokens["other"] == served.tokens["one"][10:15]
    assert served.stats.cached_sequences == 1, "the second turn holds all that the others have"
    served.check_cells()


def test_a_running_request_is_shared_from(served: Served) -> None:
    ids = prompt(np.random.default_rng(5), 200)
    first = batch_item("running", prompt=ids, max_tokens=40)
    served.engine.start(first)
    while not served.tokens.get("running"):
        served.step()
    second = batch_item("second", prompt=ids, max_tokens=5)
    second.slot = 1
    served.engine.start(second)
    while "second" not in served.cached:
        served.step()
        assert "running" not in served.cached
    assert served.cached["second"] == 199
    assert served.stats.kv_cells_shared >= 199
    while served.engine.idle_s() == 0.0:
        served.step()
    assert served.tokens["second"] == served.tokens["running"][:5]
    served.check_cells()


def test_scopes_share_nothing(served: Served) -> None:
    ids = prompt(np.random.default_rng(6), 100)
    for tenant, scope in (("a", ""), ("b", ""), ("c", "staff"), ("d", "staff"), ("e", "a")):
        item = batch_item(tenant, prompt=ids, max_tokens=3)
        item.request.tenant, item.request.cache_scope = tenant, scope
        served.run(item)
    assert served.cached == {"a": 0, "b": 0, "c": 0, "d": 99, "e": 0}


def test_a_short_match_is_not_worth_a_hit(served: Served) -> None:
    draw = np.random.default_rng(7)
    ids = prompt(draw, 15)
    served.run(batch_item("a", prompt=ids + prompt(draw, 20), max_tokens=3))
    served.run(batch_item("b", prompt=ids + prompt(draw, 20), max_tokens=3))
    assert served.cached["b"] == 0
    assert (served.queries, served.hits) == (2, 0)


def test_no_beginning_stays_that_is_too_short_to_be_found(served: Served) -> None:
    """Of two prompts that begin alike, the second to leave would leave the few tokens they share."""
    draw = np.random.default_rng(10)
    ids = prompt(draw, 8)
    for name in ("a", "b"):
        served.run(batch_item(name, prompt=ids + prompt(draw, 40), max_tokens=3))
    memory = served.engine._memory
    cached = memory.ledger.cached
    memory.prefixes.make_room(cells=memory.ledger.free + cached - 8)
    assert (memory.prefixes.n_ids, memory.ledger.cached) == (0, 0)
    served.check_cells()


def test_an_own_prefix_found_after_an_eviction_is_not_told_as_cached(served: Served) -> None:
    """A retry, in the next epoch, may find what an earlier attempt computed."""
    ids = prompt(np.random.default_rng(8), 100)
    served.run(batch_item("a", prompt=ids, max_tokens=3))
    again = batch_item("b", prompt=ids, max_tokens=3)
    again.request.epoch = 2
    served.run(again)
    assert served.hits == 1
    assert served.cached["b"] == 0


def test_turned_off_nothing_is_kept() -> None:
    demo()._main.clear()
    off = Served(demo(), has_prefix_cache=False)
    ids = prompt(np.random.default_rng(9), 100)
    for name in ("a", "b"):
        off.run(batch_item(name, prompt=ids, max_tokens=3))
    assert off.cached == {"a": 0, "b": 0}
    assert (off.queries, off.stats.kv_cells_cached, off.stats.cached_sequences) == (0, 0, 0)
    off.check_cells()


def test_a_long_suffix_after_a_hit_is_prefilled_where_long_prompts_are(served: Served) -> None:
    draw = np.random.default_rng(10)
    first = prompt(draw, 300)
    whole = first + prompt(draw, 600)
    served.run(batch_item("first", prompt=first, max_tokens=2))
    slow = batch_item("decoding", prompt=prompt(draw, 20), max_tokens=400)
    served.engine.start(slow)
    served.step()
    item = batch_item("long", prompt=whole, max_tokens=8)
    item.slot = 1
    served.engine.start(item)
    was_in_context = False
    while "long" not in served.cached:
        served.step()
        was_in_context |= any(s.in_prefill_context for s in served.engine.running.values())
    assert was_in_context
    assert served.cached["long"] == 300
    served.engine.cancel("t.decoding", is_silent=True)
    served.check_cells()


def test_two_thousand_sequences_through_a_tiny_cache_leave_every_cell_accounted_for() -> None:
    """Now and then a batch does not fit, or is cancelled half-way."""
    served = Served(load(kv_cells=256, sequences=8, prefill_cells=256), host_bytes=1 << 20)
    draw = np.random.default_rng(11)
    beginnings = [prompt(draw, 40) for _ in range(6)]
    for batch in range(500):
        items = []
        for slot in range(4):
            beginning = beginnings[int(draw.integers(len(beginnings)))][: int(draw.integers(1, 40))]
            ids = beginning + prompt(draw, int(draw.integers(1, 50)))
            items.append(batch_item(f"r{batch}-{slot}", prompt=ids, max_tokens=int(draw.integers(1, 4))))
        served.run(*items, cancelled="t." + items[1].request.request_id if batch % 10 == 0 else "")
        if batch % 20 == 0:
            served.check_cells()
    served.check_cells()
    assert served.hits > 100
    assert served.evictions > 100
    assert len(served.cached) >= 1950
    assert served.stats.kv_cells_used == 0
    memory = served.engine._memory
    assert memory.free_seq_ids == 8
    memory.prefixes.make_room(cells=256, ids=8)
    served.check_cells()
    assert (memory.ledger.used, memory.ledger.shared) == (0, 0)
