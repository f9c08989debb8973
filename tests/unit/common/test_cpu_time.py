"""When a process has worked for too long, and what the system tells of that."""

from __future__ import annotations

import os
import time

import pytest

from inferflux.common.process.machine.cpu_time import cpu_s, is_late


@pytest.mark.parametrize(
    ("worked_s", "waited_s", "late"),
    [(1.0, 2.0, False), (2.0, 2.0, False), (2.1, 2.1, True), (0.1, 10.0, False), (0.1, 10.1, True)],
)
def test_a_process_is_late_after_its_limit_of_work_or_five_of_time(
    worked_s: float, waited_s: float, *, late: bool
) -> None:
    assert is_late(worked_s=worked_s, waited_s=waited_s, limit_s=2.0) is late


def test_the_work_of_a_process_is_told_and_none_of_one_that_is_gone() -> None:
    before = cpu_s(os.getpid())
    assert before == pytest.approx(time.process_time(), abs=0.5)
    assert before > 0
    assert cpu_s(2**22 + 1) == 0.0
