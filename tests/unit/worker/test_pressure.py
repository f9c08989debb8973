"""Room in the KV cache: every step fits, the most urgent always gets on, and the least urgent gives way."""

from __future__ import annotations

from dataclasses import dataclass

from harness.profiles import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.worker.engine.memory.pressure import can_load, fit_step, make_room


@dataclass(eq=False)
class Held:
    """A sequence as far as memory goes."""

    urgency_key: float
    cells: int
    n_pending: int = 1
    is_prefilling: bool = False
    arrival: int = 0
    max_tokens: int = 0
    left: int = 0

    @property
    def order(self) -> tuple[float, int]:
        return self.urgency_key, self.arrival

    @property
    def n_tokens(self) -> int:
        return self.cells + self.n_pending


def wanted(running: list[Held], prefill_tokens: int) -> dict[Held, int]:
    """A step for all of them, prompts in order within a budget."""
    tokens = {}
    for held in sorted(running, key=lambda h: h.order):
        tokens[held] = min(held.n_pending, prefill_tokens) if held.is_prefilling else 1
        prefill_tokens -= tokens[held] if held.is_prefilling else 0
    return {held: n for held, n in tokens.items() if n}


def decoding(urgency_key: float, cells: int) -> Held:
    return Held(urgency_key, cells)


def prompt(urgency_key: float, tokens: int, computed: int = 0) -> Held:
    return Held(urgency_key, computed, n_pending=tokens - computed, is_prefilling=True)


@st.composite
def caches(draw: st.DrawFn) -> tuple[list[Held], list[Held], int]:
    """(running, parked, free) of a cache whose sequences would each fit alone."""
    held = [
        Held(
            urgency_key=draw(st.integers(0, 3)),
            cells=draw(st.integers(0, 40)),
            n_pending=draw(st.integers(1, 30)),
            is_prefilling=draw(st.booleans()),
            arrival=i,
        )
        for i in range(draw(st.integers(1, 8)))
    ]
    for h in held:
        if not h.is_prefilling:
            h.n_pending = 1
    n_running = draw(st.integers(1, len(held)))
    spare = draw(st.integers(0, 50))
    total = max(sum(h.cells for h in held) + spare, max(h.n_tokens for h in held))
    return held[:n_running], held[n_running:], total - sum(h.cells for h in held)


@given(caches(), st.integers(1, 60))
@settings(max_examples=examples(500))
def test_what_is_granted_fits_and_the_most_urgent_is_served(
    cache: tuple[list[Held], list[Held], int], budget: int
) -> None:
    running, parked, free = cache
    fit = fit_step(wanted(running, budget), running, parked, free)
    granted = dict(fit.grants)
    assert sum(granted.values()) <= free + sum(v.cells for v in fit.victims)
    assert sum(n for h, n in fit.grants if h.is_prefilling) <= budget
    assert not set(granted) & set(fit.victims)
    most_urgent = min(running, key=lambda h: h.order)
    assert granted[most_urgent] == (min(budget, most_urgent.n_pending) if most_urgent.is_prefilling else 1)
    for victim in fit.victims:
        assert victim.cells > 0
        if victim in running:
            more_urgent = [h for h in granted if h.order < victim.order]
            assert more_urgent
            assert all(p in fit.victims for p in parked if p.cells), "those who wait go first"
            less_urgent = [h for h in running if h.order > victim.order and h.cells]
            assert all(h in fit.victims for h in less_urgent), "the least urgent goes first"


@given(caches(), st.integers(1, 60))
def test_none_is_evicted_while_all_fit(cache: tuple[list[Held], list[Held], int], budget: int) -> None:
    running, parked, _ = cache
    tokens = wanted(running, budget)
    fit = fit_step(tokens, running, parked, sum(tokens.values()))
    assert fit.victims == []
    assert dict(fit.grants) == tokens


def test_a_prompt_shrinks_before_a_more_urgent_one_is_sent_out() -> None:
    urgent, late = decoding(0, 50), prompt(1, 40)
    fit = fit_step({urgent: 1, late: 32}, [urgent, late], [], free=11)
    assert fit.grants == [(urgent, 1), (late, 10)]
    assert fit.victims == []


def test_a_more_urgent_prompt_sends_the_least_urgent_out() -> None:
    urgent, middle, last = prompt(0, 40), decoding(1, 30), decoding(2, 30)
    fit = fit_step({last: 1, urgent: 32, middle: 1}, [last, urgent, middle], [], free=4)
    assert fit.grants == [(urgent, 32), (middle, 1)]
    assert fit.victims == [last]


def test_those_who_wait_for_their_turn_go_before_those_that_run() -> None:
    a, b, waiting = decoding(0, 30), decoding(5, 30), decoding(-1, 30)
    fit = fit_step({a: 1, b: 1}, [a, b], [waiting], free=1)
    assert fit.victims == [waiting]
    assert fit.grants == [(a, 1), (b, 1)]


def test_a_sequence_for_which_none_can_be_evicted_sits_the_step_out() -> None:
    a, b = decoding(0, 30), decoding(1, 0)
    assert fit_step({a: 1, b: 1}, [a, b], [], free=1).grants == [(a, 1)]


def test_a_step_may_send_out_who_is_not_in_it() -> None:
    urgent, idle = prompt(0, 40), decoding(1, 30)
    fit = fit_step({urgent: 32}, [urgent, idle], [], free=4)
    assert (fit.grants, fit.victims) == ([(urgent, 32)], [idle])


def test_a_step_of_less_urgent_ones_alone_may_find_no_room() -> None:
    urgent, idle = prompt(0, 40), decoding(1, 30)
    fit = fit_step({idle: 1}, [urgent, idle], [], free=0)
    assert (fit.grants, fit.victims) == ([], [])


def test_the_most_urgent_may_always_enter_and_others_only_with_headroom() -> None:
    running = [decoding(1, 60)]
    assert can_load(prompt(0, 90), running, [], [], free=40, cells=100)
    assert not can_load(prompt(2, 39), running, [], [], free=40, cells=100)
    assert can_load(prompt(2, 20), running, [], [], free=40, cells=100)
    assert can_load(prompt(2, 39), running, [], [decoding(3, 30)], free=40, cells=100)
    assert not can_load(prompt(2, 99), [], [prompt(1, 5)], [], free=40, cells=100)


def test_a_prompt_ahead_counts_with_all_it_still_needs() -> None:
    ahead = prompt(1, 60, computed=10)
    assert not can_load(prompt(2, 40), [ahead], [], [], free=90, cells=100)


def test_room_is_made_at_the_cost_of_the_least_urgent() -> None:
    first, last, waiting = decoding(0, 30), decoding(2, 30), decoding(1, 20)
    assert make_room(10, (1.5, 0), [first, last], [waiting], free=10, free_seq_ids=1) == []
    assert make_room(25, (1.5, 0), [first, last], [waiting], free=10, free_seq_ids=1) == [waiting]
    assert make_room(40, (1.5, 0), [first, last], [waiting], free=10, free_seq_ids=1) == [waiting, last]


def test_a_sequence_id_is_taken_from_the_least_urgent_parked_sequence() -> None:
    runs, parked, last = decoding(0, 30), decoding(1, 20), decoding(2, 20)
    assert make_room(10, (0.5, 0), [runs], [last, parked], free=30, free_seq_ids=0) == [last]
    assert make_room(60, (0.5, 0), [runs], [last, parked], free=30, free_seq_ids=0) == [last, parked]
    assert make_room(10, (0.5, 0), [runs], [], free=30, free_seq_ids=0) == []


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(0, 2)), min_size=1, max_size=8))
def test_every_request_ends_whatever_comes(requests: list[tuple[int, int, int]]) -> None:
    """Prompts of 1 to 60 tokens and answers of as many, over a cache of 120 cells; swapped ones come back."""
    cells = 120
    everyone = [
        Held(
            urgency_key=urgency_key, cells=0, n_pending=n, is_prefilling=True, arrival=i, left=m, max_tokens=m
        )
        for i, (n, m, urgency_key) in enumerate(requests)
    ]
    stored: dict[Held, int] = {}
    loaded: list[Held] = []
    waiting = list(everyone)
    for _ in range(20_000):
        if not loaded and not waiting:
            return
        for held in sorted(waiting, key=lambda h: h.order):
            free = cells - sum(h.cells for h in loaded)
            needed = stored.get(held, 0)
            held.n_pending += needed  # what it has in host memory has no cells yet
            others = [h for h in waiting if h is not held]
            enters = can_load(held, loaded, others, [], free, cells)
            held.n_pending -= needed
            if not enters:
                continue
            for victim in make_room(needed, held.order, loaded, [], free=free, free_seq_ids=1):
                loaded.remove(victim)
                stored[victim], victim.cells = victim.cells, 0
                waiting.append(victim)
            held.cells = stored.pop(held, 0)
            waiting.remove(held)
            loaded.append(held)
        free = cells - sum(h.cells for h in loaded)
        fit = fit_step(wanted(loaded, 16), loaded, [], free)
        for victim in fit.victims:
            loaded.remove(victim)
            stored[victim], victim.cells = victim.cells, 0
            waiting.append(victim)
        for held, n in fit.grants:
            held.cells += n
            held.n_pending -= n
            if held.n_pending == 0:
                held.is_prefilling = False
                held.left -= 1
                held.n_pending = 1
                if held.left == 0:
                    loaded.remove(held)
        assert sum(h.cells for h in loaded) <= cells
    raise AssertionError("a sequence never ended")
