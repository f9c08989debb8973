"""End a process of tests that hangs where pytest-timeout cannot end it, show where, and run the other tests.

pytest-timeout gives a test one signal. A test that hangs again while its fixtures end, or inside of a
library, would hang for ever, and the whole run with it. A thread of `faulthandler` needs no interpreter: it
writes all stacks to stderr and ends the process. pytest-xdist names the test, and gives it to a new process
as if it had not run: each process says in a file what it runs, and a test that another one ended with
fails at once.
"""

from __future__ import annotations

import faulthandler
import os
import tempfile
from pathlib import Path

import pytest

# What a test has in each of its phases beyond the limit that pytest-timeout holds it to.
BEYOND_S = 60.0
# Names the folder in which each process says what it runs.
RUNNING = "INFERFLUX_TESTS_RUNNING"
STDERR = pytest.StashKey[int]()


def limit_of(item: pytest.Item) -> float:
    """Seconds that one phase of a test may take: its own limit or that of all tests, and `BEYOND_S`."""
    marker = item.get_closest_marker("timeout")
    own = marker.args[0] if marker and marker.args else None
    return float(own or item.config.getini("timeout")) + BEYOND_S


def watch(item: pytest.Item) -> None:
    """End this process after `limit_of(item)` seconds, unless called again or told otherwise by then."""
    faulthandler.dump_traceback_later(limit_of(item), exit=True, file=item.config.stash[STDERR])


def unwatch() -> None:
    """Let this process live."""
    faulthandler.cancel_dump_traceback_later()


def configure(config: pytest.Config) -> None:
    """Make the folder where processes say what they run, in the one that starts the others."""
    config.stash[STDERR] = os.dup(2)  # before pytest captures it
    if hasattr(config, "workerinput"):
        return
    folder = tempfile.TemporaryDirectory(prefix="inferflux-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ[RUNNING] = folder.name


def begin(item: pytest.Item) -> None:
    """Say which test this process runs. A test that another process ended with fails."""
    own = Path(os.environ[RUNNING]) / os.environ.get("PYTEST_XDIST_WORKER", "alone")
    for other in own.parent.iterdir():
        if other != own and other.read_text() == item.nodeid:
            pytest.fail(f"{other.name} ended while it ran this test: its stacks are in stderr", pytrace=False)
    own.write_text(item.nodeid)
