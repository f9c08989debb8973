"""A process from its start to its end, as a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SERVICE = """
import asyncio, gc, os, sys
from inferflux.common.contract import errors
from inferflux.common.process import lifecycle
from inferflux.common.process.settings import ServiceSettings, load

async def main(shutdown):
    print("up", os.getpid(), type(asyncio.get_running_loop()).__module__, flush=True)
    if kind == "error":
        raise errors.Unavailable("cannot reach the store (INFERFLUX_REDIS_URL)")
    if kind == "variable":
        raise errors.InvalidArgument("INFERFLUX_REDIS_URL: not one", field="INFERFLUX_REDIS_URL")
    if kind == "field":
        raise errors.InvalidArgument("models: empty", field="models")
    if kind == "defect":
        raise ZeroDivisionError("a defect")
    if kind == "heap":
        print(gc.get_freeze_count(), len(gc.get_objects()), flush=True)
        shutdown.request()
    if kind == "asks":
        shutdown.request()
    await shutdown.wait()
    print("draining", flush=True)
    if kind == "stuck":
        await asyncio.Event().wait()
    if kind == "sleeper":
        await asyncio.sleep(60)

kind = sys.argv[1]
lifecycle._TIDY_UP_S = 0.1
lifecycle.run(main, settings=load(ServiceSettings), service="test")
"""


class Run:
    def __init__(self, kind: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVICE, kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, *numbers: signal.Signals) -> tuple[int, str]:
        for number in numbers:
            self.process.send_signal(number)
        _out, err = self.process.communicate(timeout=20)
        return self.process.returncode, err


Start = Callable[..., Run]


@pytest.fixture
def start() -> Iterator[Start]:
    runs: list[Run] = []

    def start(kind: str, **environment: str) -> Run:
        runs.append(Run(kind, **environment))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains_and_ends_with_0(start: Start, number: signal.Signals) -> None:
    run = start("plain")
    assert "uvloop" in run.line()
    status, _err = run.end(number)
    assert status == 0


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_leaves_at_once(start: Start, number: signal.Signals, expected: int) -> None:
    run = start("sleeper")
    run.line()
    run.process.send_signal(signal.SIGTERM)
    assert run.line() == "draining"
    started = time.monotonic()
    status, _err = run.end(number)
    assert status == expected
    assert time.monotonic() - started < 5


def test_a_drain_that_never_ends_is_cut_short(start: Start) -> None:
    run = start("stuck", INFERFLUX_DRAIN_LIMIT_S="0.2")
    run.line()
    status, err = run.end(signal.SIGTERM)
    assert status == 1
    assert "did not drain in time" in err


def test_a_service_may_ask_for_its_own_end(start: Start) -> None:
    run = start("asks")
    run.line()
    assert run.end()[0] == 0


def test_an_error_of_ours_is_one_line_and_status_1(start: Start) -> None:
    status, err = start("error").end()
    assert status == 1
    assert err.strip() == "test: cannot reach the store (INFERFLUX_REDIS_URL)"


@pytest.mark.parametrize(("kind", "expected"), [("variable", 2), ("field", 1)])
def test_a_variable_that_turns_out_unusable_is_status_2(start: Start, kind: str, expected: int) -> None:
    status, err = start(kind).end()
    assert status == expected
    assert len(err.strip().splitlines()) == 1


def test_a_misspelt_variable_is_one_line_and_the_service_runs(start: Start) -> None:
    run = start("plain", INFERFLUX_QUEUE_LIMITS="7")
    run.line()
    status, err = run.end(signal.SIGTERM)
    assert status == 0
    (line,) = [line for line in err.splitlines() if "INFERFLUX_QUEUE_LIMITS" in line]
    assert "INFERFLUX_QUEUE_LIMIT " in f"{line} "


def test_a_defect_shows_its_traceback(start: Start) -> None:
    status, err = start("defect").end()
    assert status == 1
    assert "ZeroDivisionError: a defect" in err


def test_a_bad_setting_is_one_line_naming_the_variable_and_status_2(start: Start) -> None:
    status, err = start("plain", INFERFLUX_QUEUE_LIMIT="many").end()
    assert status == 2
    assert err.startswith("INFERFLUX_QUEUE_LIMIT: ")
    assert len(err.strip().splitlines()) == 1


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """The parent is killed with SIGKILL, so only the kernel can tell the child."""
    script = tmp_path / "service.py"
    script.write_text(SERVICE)
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1], 'plain'])",
            str(script),
        ],
        stdout=subprocess.PIPE,
        env={**os.environ, "INFERFLUX_EXIT_WITH_PARENT": "1"},
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[1])
        parent.kill()
        # It says so itself, and the pipe closes when it is gone.
        assert parent.stdout.read() == "draining\n"
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_full_collections_leave_out_what_was_imported(start: Start) -> None:
    run = start("heap")
    run.line()
    frozen, others = map(int, run.line().split())
    assert frozen > 10 * others
    assert run.end()[0] == 0
