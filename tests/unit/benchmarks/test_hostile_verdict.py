"""When an attack counts as withstood."""

from __future__ import annotations

import pytest

from benchmarks.hostile.__main__ import MAX_MEMORY_GROWTH_BYTES, Row, Verdict


@pytest.mark.parametrize(
    ("calm_s", "attacked_s", "memory_bytes", "failures", "verdict"),
    [
        (0.03, 0.12, 0, (), Verdict.MET),
        (0.03, 0.14, 0, (), Verdict.MISSED),
        (0.11, 0.12, 0, (), Verdict.NOT_JUDGED),
        (0.11, 0.90, 0, (), Verdict.NOT_JUDGED),
        (0.11, 0.12, MAX_MEMORY_GROWTH_BYTES + 1, (), Verdict.MISSED),
        (0.11, 0.12, 0, ("UNAVAILABLE: gone",), Verdict.MISSED),
    ],
)
def test_a_gap_is_judged_on_a_calm_machine_only(
    calm_s: float, attacked_s: float, memory_bytes: int, failures: tuple[str, ...], verdict: Verdict
) -> None:
    row = Row("bytes", calm_s, attacked_s, memory_bytes, failures)
    assert row.verdict is verdict
    assert ("not judged: the machine is busy" in str(row)) == (verdict is Verdict.NOT_JUDGED)
