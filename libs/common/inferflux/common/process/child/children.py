"""Child processes of an asyncio process, started without fork.

uvloop forks to start a child, and runs every library's fork handlers in it: gRPC's crash or hang a child
that is begun while calls are under way. `subprocess.Popen` uses vfork, which runs none.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

_POLL_S = 0.05


async def wait_for_end(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process to end, as often and from as many tasks as wanted.

    Returns:
        Its exit code, -n for signal n.
    """
    if process.poll() is None:
        if hasattr(os, "pidfd_open"):
            await _readable(os.pidfd_open(process.pid))
        else:
            while process.poll() is None:  # noqa: ASYNC110 - this system says nothing when a child ends
                await asyncio.sleep(_POLL_S)
    return process.wait()


def describe_end(code: int) -> str:
    """End of a process in words: `exited with status 1`, `was ended by SIGKILL`."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # most real-time signals have no name
        return f"was ended by signal {-code}"


async def _readable(fd: int) -> None:
    """Wait until `fd` can be read, and close it."""
    loop = asyncio.get_running_loop()
    is_readable: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        loop.remove_reader(fd)
        if not is_readable.done():
            is_readable.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await is_readable
    finally:
        loop.remove_reader(fd)
        os.close(fd)
