"""A test that hangs for ever, or crashes, costs a run one process, and not the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TESTS = Path(__file__).resolve().parents[2]
CONFTEST = """
import pytest
from harness import hangs
from harness.distribution import CrashproofFiles

hangs.BEYOND_S = 0.5
pytest_configure = hangs.configure

def pytest_xdist_make_scheduler(config, log):
    return CrashproofFiles(config, log)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    hangs.watch(item)
    yield
    hangs.unwatch()
"""
HANGS = """
import ctypes, time
import pytest

def test_before(): pass

@pytest.fixture
def stuck():
    yield
    ctypes.PyDLL(None).sleep(60)  # holds the interpreter's lock: no other thread of Python runs

@pytest.mark.timeout(0.5)
def test_hangs(stuck):
    time.sleep(60)

def test_after(): pass
"""
CRASHES = """
import os

def test_crashes():
    os.abort()
"""
# As many as a process that ends has run: each is in a file of its own.
N_SHORT = 6


def test_a_test_that_hangs_or_crashes_is_named_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 30\n")
    for number in range(N_SHORT):
        (tmp_path / f"test_{number}.py").write_text("def test_short(): pass\n")
    (tmp_path / f"test_{N_SHORT}.py").write_text(HANGS)
    (tmp_path / f"test_{N_SHORT + 1}.py").write_text(CRASHES)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n2", "--dist=loadfile", "--no-loadscope-reorder", "."],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = run.stdout + run.stderr
    assert run.returncode == 1, said
    assert f" {N_SHORT + 2} passed" in said
    for name in (f"test_{N_SHORT}.py::test_hangs", f"test_{N_SHORT + 1}.py::test_crashes"):
        assert f"crashed while running '{name}'" in said
    assert "worker 'gw4'" not in said  # each ended one process
    assert "in stuck" in run.stderr, "where it hung"
