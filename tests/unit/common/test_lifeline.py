"""A child ends with its lifeline, whatever it does."""

from __future__ import annotations

import os
import subprocess
import sys

_CHILD = """
import sys
from inferflux.common.process.child.lifeline import exit_at_end_of

exit_at_end_of(int(sys.argv[1]))
print("computing", flush=True)
while True:
    pass
"""

_TIDY_CHILD = """
import os, sys
from inferflux.common.process.child.lifeline import exit_at_end_of

lifeline = int(sys.argv[1])
exit_at_end_of(os.dup(lifeline), grace_s=60)
print("waiting", flush=True)
os.read(lifeline, 1)
sys.exit(3)
"""


def test_a_child_that_computes_ends_with_its_lifeline() -> None:
    assert _status_after_its_lifeline(_CHILD, b"computing\n") == 0


def test_a_child_may_end_by_itself_in_its_grace() -> None:
    assert _status_after_its_lifeline(_TIDY_CHILD, b"waiting\n") == 3


def _status_after_its_lifeline(code: str, first_line: bytes) -> int:
    """The exit status of a child that runs `code`, whose lifeline ends once it has printed a line."""
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", code, str(read_end)], pass_fds=[read_end], stdout=subprocess.PIPE
    ) as child:
        os.close(read_end)
        assert child.stdout is not None
        assert child.stdout.readline() == first_line
        assert child.poll() is None
        os.close(write_end)
        return child.wait(30)
