"""A test that pytest-timeout cannot end costs a run one process, and not the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
CONFTEST = """
import pytest
from harness import hangs

hangs.BEYOND_S = 0.5

def pytest_configure(config):
    hangs.configure(config)

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    hangs.begin(item)

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


def test_a_test_that_hangs_is_named_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 30\n")
    (tmp_path / "test_some.py").write_text(HANGS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadfile", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = run.stdout + run.stderr
    assert run.returncode == 1, said
    assert "PASSED test_some.py::test_before" in said
    assert "PASSED test_some.py::test_after" in said
    assert "crashed while running 'test_some.py::test_hangs'" in said
    assert "ended while it ran this test" in said
    assert "in stuck" in run.stderr, "where it hung"
    assert not list(tmp_path.glob("inferflux-tests-*"))
