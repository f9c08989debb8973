"""End a process of tests that hangs where pytest-timeout cannot end it, and show where.

pytest-timeout gives a test one signal. A test that hangs again while its fixtures end, or inside of a
library, would hang for ever, and the whole run with it. A thread of `faulthandler` needs no interpreter: it
writes all stacks to stderr and ends the process. `CrashproofFiles` has the other tests run elsewhere.
"""

from __future__ import annotations

import faulthandler
import os

import pytest

# What a test has in each of its phases beyond the limit that pytest-timeout holds it to.
BEYOND_S = 60.0
# And where that limit is not for its fixtures, which build images of containers.
FIXTURES_S = 3600.0
STDERR = pytest.StashKey[int]()


def configure(config: pytest.Config) -> None:
    """Keep stderr, before pytest captures it."""
    config.stash[STDERR] = os.dup(2)


def limit_of(item: pytest.Item) -> float:
    """Seconds that one phase of a test may take: its own limit or that of all tests, and `BEYOND_S`."""
    marker = item.get_closest_marker("timeout")
    own = marker.args[0] if marker and marker.args else None
    beyond_s = FIXTURES_S if item.config.getini("timeout_func_only") else BEYOND_S
    return float(own or item.config.getini("timeout")) + beyond_s


def watch(item: pytest.Item) -> None:
    """End this process after `limit_of(item)` seconds, unless called again or told otherwise by then."""
    faulthandler.dump_traceback_later(limit_of(item), exit=True, file=item.config.stash[STDERR])


def unwatch() -> None:
    """Let this process live."""
    faulthandler.cancel_dump_traceback_later()
