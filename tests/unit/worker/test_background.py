"""Work of low priority."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from inferflux.worker.engine.background import in_background


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_the_work_has_a_low_priority_and_the_caller_keeps_its_own() -> None:
    before = niceness()
    assert in_background(niceness) == max(before, 10)
    assert niceness() == before


def test_what_the_work_raises_is_raised() -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        in_background(leave)
    assert caught.value.code == 3
