"""Checks of complete answers, in a process of their own, one after the other.

A schema can make a check take for ever, and jsonschema_rs holds the interpreter meanwhile: no thread of the
engine would go on. So the process is killed when it is late, and another one begins with the next check.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from inferflux.common.process.child.frames import ChildEnd
from inferflux.v1 import engine_pb2, generation_pb2

CHECK_LIMIT_S = 1.0
_START_LIMIT_S = 10.0


class CheckError(Exception):
    """The answer could not be checked because of what it is; says why."""


class CheckerError(Exception):
    """The process that checks answers cannot be started; says why."""


class AnswerChecks:
    """Checks answers beside the engine's thread.

    Args:
        limit_s: for one of them, from its turn.
    """

    def __init__(self, *, limit_s: float = CHECK_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="answer-checks")
        # Used by the pool's one thread; `close` kills the process.
        self._checker: ChildEnd[engine_pb2.AnswerChecked] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._killing = threading.Lock()

    def prepare(self) -> None:
        """Have the process started: an answer will be checked some time."""
        if self._process is None:
            self._pool.submit(self._started)

    def begin(self, constraint: generation_pb2.StructuredConstraint, answer: str) -> Future[str]:
        """Check an answer, after those that wait.

        Returns:
            Why it is not what was asked for; "" if it is. Or CheckError, or CheckerError.
        """
        return self._pool.submit(self._check, constraint, answer)

    def close(self) -> None:
        """End the process, whatever it checks."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._kill()  # which ends what the pool's thread waits for
        self._pool.shutdown()
        self._forget()

    def _check(self, constraint: generation_pb2.StructuredConstraint, answer: str) -> str:
        checker = self._started()
        try:
            checker.send(engine_pb2.AnswerCheck(constraint=constraint, answer=answer))
            for checked in checker.arrived(self._limit_s):
                return checked.why_wrong
        except (EOFError, OSError):
            self._forget()
            raise CheckError("the process that checked the answer ended over it") from None
        self._forget()
        raise CheckError(f"checking the answer took longer than {self._limit_s:g} s")

    def _started(self) -> ChildEnd[engine_pb2.AnswerChecked]:
        if self._checker is not None and self._process is not None and self._process.poll() is None:
            return self._checker
        self._forget()
        ours, theirs = socket.socketpair()
        numbers = os.getpid(), theirs.fileno()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "inferflux.worker.processes.answer_checker", *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        except OSError as error:
            ours.close()
            raise CheckerError(f"the process that checks answers cannot be started: {error}") from None
        finally:
            theirs.close()
        self._socket = ours
        checker = ChildEnd(ours, engine_pb2.AnswerChecked.FromString)
        try:
            for _ in checker.arrived(_START_LIMIT_S):
                self._checker = checker
                return checker
        except (EOFError, OSError):
            pass
        self._forget()
        raise CheckerError("the process that checks answers did not start")

    def _kill(self) -> None:
        with self._killing:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            self._process = self._checker = None

    def _forget(self) -> None:
        """Kill the process, and close this end."""
        self._kill()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
