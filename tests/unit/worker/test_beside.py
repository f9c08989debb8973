"""Work beside the engine's thread: done meanwhile, waited for, and its errors raised where it was given."""

from __future__ import annotations

import threading

import pytest

from inferflux.worker.engine.step.beside import Beside


def test_work_is_done_in_another_thread_and_waited_for() -> None:
    beside, done = Beside(), []
    may_end = threading.Event()

    def work() -> None:
        may_end.wait(10)
        done.append(threading.current_thread())

    with beside.doing(work):
        assert not done
        may_end.set()
    assert done != [threading.current_thread()]
    beside.close()


def test_an_error_of_the_work_is_raised_where_it_was_given_and_the_next_work_is_done() -> None:
    beside, done = Beside(), []

    def fail() -> None:
        raise ConnectionError("the worker is gone")

    with pytest.raises(ConnectionError, match="gone"), beside.doing(fail):
        pass
    with beside.doing(lambda: done.append(1)):
        pass
    assert done == [1]
    beside.close()


def test_without_work_there_is_no_thread() -> None:
    before = threading.active_count()
    beside = Beside()
    with beside.doing(None):
        assert threading.active_count() == before
    beside.close()
