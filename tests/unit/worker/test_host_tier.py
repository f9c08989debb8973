"""Engines of a worker hold KV state in host memory within one budget, whatever crosses on its way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.host.host_tier import Part, divide
from inferflux.worker.model.host_limit import HostLimit

BUDGET = 6400


@dataclass
class Engine:
    """An engine, with what is on its way to it and from it."""

    limit: HostLimit = field(default_factory=lambda: HostLimit(0))
    own_limit: int = 0
    held: int = 0
    reported: int = 0
    commands: deque[int] = field(default_factory=deque)
    answers: deque[int] = field(default_factory=deque)

    def tell(self, n_bytes: int) -> None:
        if n_bytes != self.limit.now:
            self.limit.give(n_bytes)
            self.commands.append(n_bytes)

    def obey(self) -> None:
        if self.commands:
            self.own_limit = self.commands.popleft()
            self.held = min(self.held, self.own_limit)
            self.answers.append(self.own_limit)

    def report(self) -> None:
        self.reported = self.held
        if self.answers:
            self.limit.taken(self.answers.popleft())


def divided(budget: int, engines: list[Engine]) -> None:
    parts = {str(i): Part(e.limit.now, e.limit.most, e.reported) for i, e in enumerate(engines)}
    for name, n_bytes in divide(budget, parts).items():
        engines[int(name)].tell(n_bytes)


def settle(budget: int, engines: list[Engine]) -> None:
    for _ in range(4):
        divided(budget, engines)
        for engine in engines:
            while engine.commands or engine.answers:
                engine.obey()
                engine.report()


@given(
    n_engines=st.integers(1, 8),
    events=st.lists(
        st.tuples(st.sampled_from(["divide", "obey", "fill", "report"]), st.integers(0, 7)), max_size=80
    ),
)
def test_engines_never_hold_more_than_the_budget_together(
    n_engines: int, events: list[tuple[str, int]]
) -> None:
    engines = [Engine() for _ in range(n_engines)]
    for event, number in events:
        engine = engines[number % n_engines]
        if event == "divide":
            divided(BUDGET, engines)
        elif event == "obey":
            engine.obey()
        elif event == "fill":
            engine.held = engine.own_limit
        else:
            engine.report()
        assert sum(each.held for each in engines) <= sum(each.own_limit for each in engines) <= BUDGET
    settle(BUDGET, engines)
    assert sum(each.own_limit for each in engines) >= BUDGET - n_engines * 2 * (BUDGET // 64) - n_engines


@given(budgets=st.lists(st.integers(0, BUDGET), min_size=1, max_size=6), n_engines=st.integers(1, 8))
def test_a_budget_that_changes_is_kept_to_as_soon_as_engines_have_taken_their_limits(
    budgets: list[int], n_engines: int
) -> None:
    engines = [Engine() for _ in range(n_engines)]
    for budget in budgets:
        settle(budget, engines)
        for engine in engines:
            engine.held = engine.reported = engine.own_limit
        assert sum(each.held for each in engines) <= budget


def test_half_is_shared_alike_and_half_by_what_is_held() -> None:
    assert divide(BUDGET, {"a": Part(0, 0, 0), "b": Part(0, 0, 0)}) == {"a": 3200, "b": 3200}
    assert divide(BUDGET, {"a": Part(0, 0, 900), "b": Part(0, 0, 300)}) == {"a": 4000, "b": 2400}
    assert divide(BUDGET, {"a": Part(3900, 3900, 900), "b": Part(2500, 2500, 300)}) == {"a": 3900, "b": 2500}
    assert divide(BUDGET, {}) == {}
    assert divide(0, {"a": Part(100, 100, 100)}) == {"a": 0}


def test_what_one_gives_up_is_anothers_once_it_cannot_be_held_any_more() -> None:
    first = divide(BUDGET, {"a": Part(BUDGET, BUDGET, 0), "b": Part(0, 0, 0)})
    assert first == {"a": 3200, "b": 0}
    assert divide(BUDGET, {"a": Part(3200, 3200, 0), "b": Part(0, 0, 0)}) == {"a": 3200, "b": 3200}


def test_a_limit_counts_until_the_engine_keeps_to_a_later_one() -> None:
    limit = HostLimit(10)
    for n_bytes in (90, 20, 90, 30):
        limit.give(n_bytes)
    assert (limit.now, limit.most) == (30, 90)
    limit.taken(90)
    limit.taken(20)
    assert limit.most == 90
    limit.taken(90)
    limit.taken(30)
    assert limit.most == 30
    limit.taken(7)
    assert limit.most == 30, "no limit that it was given"
    limit.give(80)
    limit.give(40)
    limit.died()
    assert (limit.now, limit.most) == (40, 40)
