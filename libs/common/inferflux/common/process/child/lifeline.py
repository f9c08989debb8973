"""A pipe whose write end the parent alone holds: at its end the child knows that the parent is gone.

That works on every system, and at once, whatever the child computes.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time


def is_at_end(fd: int, *, wait_s: float) -> bool:
    """True if the pipe `fd` is at its end, or is within `wait_s`."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


def exit_at_end_of(fd: int, *, grace_s: float = 0.0) -> None:
    """Have a thread end this process, without cleaning up, when the pipe `fd` is at its end.

    Args:
        fd: the read end. This process owns it from now on.
        grace_s: how long this process has then to end by itself.
    """

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(fd, 1):
                pass
        time.sleep(grace_s)
        os._exit(0)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
