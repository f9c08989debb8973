"""A run in a PID namespace of its own: when it ends, however that is, the kernel ends all that it started.

Processes that stand still end with it, too, and no two runs can see each other.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

from inferflux.cli.stack.servers import dying_with_parent

_INSIDE = "FLEET_PROCESS_NAMESPACE"
# A run has a few descriptors for each host and each client.
_DESCRIPTORS = 1024
_TRIAL_LIMIT_S = 10.0
# What a run gets beyond its own limit to say where it was.
_BEYOND_S = 30.0


def is_inside() -> bool:
    """Whether this process is in such a namespace."""
    return _INSIDE in os.environ


def missing() -> str:
    """What this machine lacks for it; empty if nothing."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    try:
        done = subprocess.run(
            _inside(["/bin/true"]), capture_output=True, check=False, timeout=_TRIAL_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"no process namespace was made within {_TRIAL_LIMIT_S:g} s"
    if done.returncode:
        return f"no process namespace can be made here: {done.stderr.decode(errors='replace').strip()}"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _DESCRIPTORS:
        wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        if wanted < _DESCRIPTORS:
            return f"a process may open {hard} files here, and {_DESCRIPTORS} are needed"
    return ""


def again(arguments: Sequence[str], limit_s: float) -> int:
    """Run this program once more, in such a namespace; returns its exit status.

    Args:
        limit_s: after which it ends by itself. It is killed somewhat later.
    """
    command = _inside([sys.executable, "-m", "fleet", *arguments])
    # `unshare` lets SIGTERM wait for its child.
    process = subprocess.Popen(dying_with_parent(command, signal.SIGKILL), env={**os.environ, _INSIDE: "1"})
    # Ctrl-C in a terminal is for the run, which is in the same process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait(limit_s + _BEYOND_S)
    except subprocess.TimeoutExpired:
        print(f"fleet: was not over after {limit_s + _BEYOND_S:g} s, and is killed", file=sys.stderr)
        return 1
    finally:
        process.kill()
        process.wait()


def _inside(command: Sequence[str]) -> list[str]:
    unshare = shutil.which("unshare") or "unshare"
    of_its_own = ["--pid", "--mount", "--mount-proc", "--fork", "--kill-child"]
    # A shell is the first process there: it takes the exit status of processes that have lost their parent.
    return [unshare, *of_its_own, "/bin/sh", "-c", '"$@"; exit $?', "sh", *command]
