"""A long step is given up for what would otherwise wait for it, and for nothing else."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inferflux.common.process.child.frames import ChildEnd, pack
from inferflux.v1 import engine_pb2, worker_pb2
from inferflux.worker.engine import __main__ as engine_main
from inferflux.worker.engine.__main__ import Inbox, Outbox, serve_step
from inferflux.worker.engine.step.commands import is_more_urgent
from inferflux.worker.engine.step.core import Engine

Command = engine_pb2.EngineCommand


@pytest.mark.parametrize(
    ("command", "interrupts"),
    [
        (Command(start=worker_pb2.BatchItem(urgency_key=-2.0)), True),
        (Command(start=worker_pb2.BatchItem(urgency_key=-1.0)), False),
        (Command(start=worker_pb2.BatchItem(urgency_key=0.0)), False),
        (Command(resume=engine_pb2.EngineResume(urgency_key=-2.0)), True),
        (Command(resume=engine_pb2.EngineResume(urgency_key=0.0)), False),
        (Command(cancel=engine_pb2.EngineCancel()), True),
        (Command(deschedule=engine_pb2.EngineDeschedule()), True),
        (Command(flush=engine_pb2.EngineFlush()), True),
        (Command(report_cache=engine_pb2.EngineReportCache()), False),
        (Command(clear_cache=engine_pb2.EngineClearCache()), False),
    ],
)
def test_what_a_long_step_is_given_up_for(command: Command, *, interrupts: bool) -> None:
    assert is_more_urgent(command, -1.0) == interrupts


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Inbox]]:
    parent, child = socket.socketpair()
    with parent, child:
        yield parent, Inbox(ChildEnd(child, Command.FromString))


def cancel(key: str) -> Command:
    return Command(cancel=engine_pb2.EngineCancel(key=key))


def test_what_is_seen_within_a_step_is_obeyed_after_it_and_in_order(
    pair: tuple[socket.socket, Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_main, "_LOOK_EVERY_S", 0.0)
    parent, inbox = pair
    parent.sendall(pack(cancel("a")) + pack(cancel("b")))
    assert list(inbox.arrived()) == [cancel("a"), cancel("b")]
    assert list(inbox.arrived()) == []
    parent.sendall(pack(cancel("c")))
    assert list(inbox.take(None)) == [cancel("a"), cancel("b"), cancel("c")]
    assert list(inbox.take(0.0)) == []


def test_that_the_worker_is_gone_is_raised_between_steps_alone(pair: tuple[socket.socket, Inbox]) -> None:
    parent, inbox = pair
    parent.close()
    assert list(inbox.arrived()) == []
    with pytest.raises(EOFError):
        list(inbox.take(0.0))


Report = engine_pb2.EngineReport


def report(token: int, **parts: Any) -> engine_pb2.EngineReport:
    step = engine_pb2.StepReport(**parts)
    step.emissions.add(key="a", generated_tokens=token)
    return Report(step=step)


@pytest.mark.parametrize(("together_s", "sent"), [(0.0, 1), (math.inf, 0)])
def test_reports_of_steps_that_take_no_time_go_together(
    together_s: float, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_main, "_TOGETHER_S", together_s)
    parent, child = socket.socketpair()
    with parent, child:
        outbox, worker = Outbox(ChildEnd(child, Command.FromString)), ChildEnd(parent, Report.FromString)
        outbox.add(report(1))
        assert list(worker.arrived(0.0)) == [report(1)][:sent]
        outbox.add(report(2))
        outbox.send()
        outbox.send()
        assert list(worker.arrived(0.0)) == [report(1), report(2)][sent:]


@pytest.mark.parametrize(
    "parts",
    [
        {"finished": [engine_pb2.EngineFinished(key="b")]},
        {"residences": [engine_pb2.EngineResidence(key="b")]},
    ],
)
def test_no_end_waits_for_a_step(parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_main, "_TOGETHER_S", math.inf)
    parent, child = socket.socketpair()
    with parent, child:
        outbox, worker = Outbox(ChildEnd(child, Command.FromString)), ChildEnd(parent, Report.FromString)
        outbox.add(report(1))
        outbox.add(report(2, **parts))
        assert list(worker.arrived(0.0)) == [report(1), report(2, **parts)]


class Steps:
    """An engine of one request that reports each step."""

    def __init__(
        self, *reports: engine_pb2.EngineReport | None, is_prefilling: bool, idle_s: float | None
    ) -> None:
        self.running = {0: SimpleNamespace(is_prefilling=is_prefilling)}
        self._reports = list(reports)
        self._idle_s = idle_s

    def idle_s(self) -> float | None:
        return self._idle_s

    pieces = SimpleNamespace(has_news=False)

    def poll(self) -> None:
        pass

    def compute(self) -> None:
        self.sent_before = self.look()

    def take_report(self) -> engine_pb2.EngineReport | None:
        return self._reports.pop(0)

    def check_ledger(self) -> bool:
        return False

    look: Callable[[], list[engine_pb2.EngineReport]]


@pytest.mark.parametrize(
    ("is_prefilling", "idle_s", "sent"), [(False, 0.0, []), (True, 0.0, [1]), (False, 0.001, [1])]
)
def test_no_report_waits_for_a_long_step_or_an_idle_engine(
    *, is_prefilling: bool, idle_s: float, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_main, "_TOGETHER_S", math.inf)
    parent, child = socket.socketpair()
    with parent, child:
        channel, worker = ChildEnd(child, Command.FromString), ChildEnd(parent, Report.FromString)
        engine, outbox = Steps(None, is_prefilling=is_prefilling, idle_s=idle_s), Outbox(channel)
        engine.look = lambda: list(worker.arrived(0.0))
        outbox.add(report(1))
        serve_step(cast("Engine", engine), channel, Inbox(channel), outbox)
        assert engine.sent_before == [report(token) for token in sent]
        # A step that did nothing has no report, and none may come for long.
        assert engine.sent_before + list(worker.arrived(0.0)) == [report(1)]
