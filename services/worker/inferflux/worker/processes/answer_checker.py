"""The process that checks answers: a child of the engine.

    python -m inferflux.worker.processes.answer_checker PARENT_PID FD

FD is one end of a socket pair. The process ends when the other end is closed, and when its parent dies. The
engine kills it when a check takes too long.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections import OrderedDict

from inferflux.common.process.child.frames import ChildEnd
from inferflux.common.process.child.parent_death import exit_with_parent
from inferflux.common.process.child.process_limits import bound
from inferflux.common.text.constraints.checking import Check, ConstraintError, check_of
from inferflux.v1 import engine_pb2

_MEMORY_BYTES = 1 << 30
_MOST_CACHED = 64


class AnswerChecker:
    """Keeps the checks of the latest constraints."""

    def __init__(self) -> None:
        self._checks: OrderedDict[bytes, Check] = OrderedDict()

    def why_wrong(self, asked: engine_pb2.AnswerCheck) -> str:
        """Why an answer is not what was asked for; "" if it is."""
        key = asked.constraint.SerializeToString(deterministic=True)
        check = self._checks.get(key)
        if check is None:
            try:
                check = self._checks[key] = check_of(asked.constraint)
            except ConstraintError as error:
                return f"it cannot be checked: {error}"
            if len(self._checks) > _MOST_CACHED:
                self._checks.popitem(last=False)
        self._checks.move_to_end(key)
        return check(asked.answer)


def main() -> None:
    parent, fd = (int(argument) for argument in sys.argv[1:3])
    # The engine decides when this ends; a terminal's Ctrl-C reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    exit_with_parent(signal.SIGKILL, parent=parent)
    bound("RLIMIT_AS", _MEMORY_BYTES, _MEMORY_BYTES)
    bound("RLIMIT_CORE", 0, 0)
    engine = ChildEnd(socket.socket(fileno=fd), engine_pb2.AnswerCheck.FromString)
    checker = AnswerChecker()
    answer = engine_pb2.AnswerChecked()
    while True:
        engine.send(answer)
        answer = engine_pb2.AnswerChecked(why_wrong=checker.why_wrong(engine.receive()))


if __name__ == "__main__":
    try:
        main()
    except (EOFError, ConnectionError):
        sys.exit(0)
