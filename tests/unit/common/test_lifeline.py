"""A child ends with its lifeline, whatever it does."""

from __future__ import annotations

import os
import subprocess
import sys

_CHILD = """
import sys
from inferflux.common.lifeline import exit_at_end_of

exit_at_end_of(int(sys.argv[1]))
print("computing", flush=True)
while True:
    pass
"""


def test_a_child_that_computes_ends_with_its_lifeline() -> None:
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(read_end)], pass_fds=[read_end], stdout=subprocess.PIPE
    ) as child:
        os.close(read_end)
        assert child.stdout is not None
        assert child.stdout.readline() == b"computing\n"
        assert child.poll() is None
        os.close(write_end)
        assert child.wait(30) == 0
