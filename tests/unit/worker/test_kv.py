"""The account of KV cells is exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.kv import CellLedger, OutOfCells


@given(
    st.lists(st.tuples(st.sampled_from(["reserve", "use", "release"]), st.integers(0, 5), st.integers(0, 60)))
)
def test_never_more_reserved_than_there_is_nor_used_than_reserved(steps: list[tuple[str, int, int]]) -> None:
    ledger = CellLedger(100)
    held: dict[int, tuple[int, int]] = {}
    for action, slot, cells in steps:
        if action == "reserve" and slot not in held:
            if cells <= 100 - sum(r for r, _ in held.values()):
                ledger.reserve(slot, cells)
                held[slot] = (cells, 0)
            else:
                with pytest.raises(OutOfCells):
                    ledger.reserve(slot, cells)
        elif action == "use" and slot in held:
            reserved, used = held[slot]
            if used + cells <= reserved:
                ledger.use(slot, cells)
                held[slot] = (reserved, used + cells)
            else:
                with pytest.raises(OutOfCells):
                    ledger.use(slot, cells)
        elif action == "release":
            ledger.release(slot)
            held.pop(slot, None)
        assert ledger.reserved == sum(r for r, _ in held.values()) <= 100
        assert ledger.used == sum(u for _, u in held.values())
        assert ledger.free == 100 - ledger.reserved


def test_a_slot_is_reserved_once() -> None:
    ledger = CellLedger(10)
    ledger.reserve(1, 4)
    with pytest.raises(ValueError, match="slot 1"):
        ledger.reserve(1, 4)
