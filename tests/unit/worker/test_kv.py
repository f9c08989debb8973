"""The account of KV cells is exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.kv import CellLedger, OutOfCells

_ACTIONS = st.sampled_from(["use", "release"])


@given(st.lists(st.tuples(_ACTIONS, st.integers(0, 5), st.integers(0, 60))))
def test_never_more_cells_are_used_than_there_are(steps: list[tuple[str, int, int]]) -> None:
    ledger = CellLedger(100)
    used: dict[int, int] = {}
    for action, seq_id, n in steps:
        if action == "use":
            if sum(used.values()) + n <= 100:
                ledger.use(seq_id, n)
                used[seq_id] = used.get(seq_id, 0) + n
            else:
                with pytest.raises(OutOfCells):
                    ledger.use(seq_id, n)
        else:
            ledger.release(seq_id)
            used.pop(seq_id, None)
        assert ledger.used == sum(used.values()) <= 100
        assert ledger.free == 100 - ledger.used
