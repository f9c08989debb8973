"""On the PYTHONPATH of workers: requests whose id starts with `poison` kill every engine that runs them.

The engine ends by SIGKILL in the step that makes the request's second new token, as by an abort in native
code: nothing of that step is reported.
"""

from __future__ import annotations

import os
import signal
import sys

_MARK = ".poison"
_KILLS_AT = 2


def _arm() -> None:
    from inferflux.worker.engine.core import Engine

    step = Engine.step
    started: dict[tuple[str, int], int] = {}

    def kill(self: Engine) -> None:
        step(self)
        for sequence in self._running.values():
            if _MARK in sequence.key:
                first = started.setdefault((sequence.key, sequence.epoch), sequence.generated)
                if sequence.generated - first >= _KILLS_AT - 1 and sequence.generated:
                    os.kill(os.getpid(), signal.SIGKILL)

    Engine.step = kill  # type: ignore[method-assign]


if sys.orig_argv[1:3] == ["-m", "inferflux.worker.engine"]:
    _arm()
