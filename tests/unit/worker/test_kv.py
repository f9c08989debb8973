"""The account of KV cells is exact, shared ones counted once."""

from __future__ import annotations

import pytest
from harness.long_lists import long_lists
from harness.profiles import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.worker.engine.kv.kv import CellLedger, OutOfCells

CELLS = 100
IDS = 6
_Step = tuple[str, int, int, int]
_STEPS = long_lists(
    st.tuples(
        st.sampled_from(["use", "share", "keep", "cut", "release"]),
        st.integers(0, IDS - 1),
        st.integers(0, IDS - 1),
        st.integers(0, 60),
    ),
    max_size=60,
)


class NaiveLedger:
    """Every cell is an object, every sequence a list of them."""

    def __init__(self) -> None:
        self.held: dict[int, list[object]] = {i: [] for i in range(IDS)}
        self.cached: set[int] = set()

    def cells(self, ids: set[int]) -> set[object]:
        return {cell for i in ids for cell in self.held[i]}

    def shared(self) -> int:
        owners: dict[object, int] = {}
        for cells in self.held.values():
            for cell in cells:
                owners[cell] = owners.get(cell, 0) + 1
        return sum(n > 1 for n in owners.values())

    def apply(self, ledger: CellLedger, step: _Step) -> None:
        """Do the same in both, if it can be done."""
        kind, one, other, n = step
        mine = self.held[one]
        match kind:
            case "use" if one not in self.cached:
                if n > CELLS - len(self.cells(set(self.held))):
                    with pytest.raises(OutOfCells):
                        ledger.use(one, n)
                    return
                ledger.use(one, n)
                mine.extend(object() for _ in range(n))
            case "share" if not mine and one not in self.cached and 0 < n <= len(self.held[other]):
                ledger.share(other, one, n)
                self.held[one] = self.held[other][:n]
            case "keep" if mine and one not in self.cached:
                ledger.keep(one)
                self.cached.add(one)
            case "cut" if 0 < n <= len(mine):
                ledger.cut(one, n)
                del mine[n:]
            case "release":
                ledger.release(one)
                self.held[one] = []
                self.cached.discard(one)


@given(_STEPS)
@settings(max_examples=examples(100))
def test_it_says_the_same_as_an_account_of_each_cell(steps: list[_Step]) -> None:
    ledger, naive = CellLedger(CELLS), NaiveLedger()
    high_water = 0
    for step in steps:
        naive.apply(ledger, step)
        used = len(naive.cells(set(range(IDS))))
        high_water = max(high_water, used)
        residents = set(range(IDS)) - naive.cached
        assert (ledger.used, ledger.free) == (used, CELLS - used)
        assert ledger.held == len(naive.cells(residents))
        assert ledger.cached == used - ledger.held
        assert ledger.shared == naive.shared()
        assert ledger.high_water == high_water
        assert [ledger.cells_of(i) for i in range(IDS)] == [len(naive.held[i]) for i in range(IDS)]


@given(_STEPS, st.permutations(range(IDS)))
@settings(max_examples=examples(70))
def test_a_trial_says_what_evicting_requests_would_free(steps: list[_Step], order: list[int]) -> None:
    ledger, naive = CellLedger(CELLS), NaiveLedger()
    for step in steps:
        naive.apply(ledger, step)
    left = set(range(IDS)) - naive.cached
    trial = ledger.trial()
    before = ledger.held
    for one in [i for i in order if i in left]:
        left.remove(one)
        after = len(naive.cells(left))
        assert trial.release(one) == before - after
        before = after
    assert ledger.held == len(naive.cells(set(range(IDS)) - naive.cached)), "a trial changes nothing"


def test_what_cannot_be_shared_is_refused() -> None:
    ledger = CellLedger(CELLS)
    ledger.use(0, 10)
    ledger.use(1, 1)
    for seq_id, n in ((1, 5), (2, 11), (2, 0)):
        with pytest.raises(ValueError, match="cannot be shared"):
            ledger.share(0, seq_id, n)
    assert (ledger.used, ledger.shared) == (11, 0)
