"""How long a constraint may take to compile."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from inferflux.worker.engine.constraints.answer_checks import AnswerChecks
from inferflux.worker.engine.constraints.constraints import COMPILE_LIMIT_S, CompiledConstraint


def test_time_counts_from_when_it_is_the_constraints_turn() -> None:
    """Those before it have limits of their own, and none of it is the caller's fault."""
    compiling: Future[Any] = Future()
    constraint = CompiledConstraint(compiling, AnswerChecks())
    for now_s in (0.0, 5 * COMPILE_LIMIT_S):
        assert not constraint.settle(now_s)
    compiling.set_running_or_notify_cancel()
    began_s = 6 * COMPILE_LIMIT_S
    assert not constraint.settle(began_s)
    assert not constraint.settle(began_s + COMPILE_LIMIT_S - 0.1)
    assert constraint.error == ""
    assert constraint.settle(began_s + COMPILE_LIMIT_S)
    assert "longer than 10 s" in constraint.error
