"""One life of a tokenizer process, as seen by its parent."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from inferflux.common.contract.errors import Unavailable
from inferflux.common.process.child.captured import Captured, cause_in
from inferflux.common.process.child.frames import ParentEnd
from inferflux.common.process.machine.cpu_time import cpu_s, is_late
from inferflux.v1 import tokenizer_pb2

_LOOK_AGAIN_S = 0.05

_Answer = asyncio.Future[tokenizer_pb2.TokenizerResponse]


class ProcessGoneError(Exception):
    """The process ended before it answered.

    Attributes:
        is_blameless: it was killed because of another request.
        worked_s: how long it had worked on this one, in CPU time where the system tells it.
        cause: what it said of its end, in one line; "" if nothing.
    """

    def __init__(self, *, is_blameless: bool, worked_s: float = 0.0, cause: str = "") -> None:
        super().__init__("the tokenizer process ended")
        self.is_blameless = is_blameless
        self.cause = cause
        self.worked_s = worked_s


class ProcessLateError(Exception):
    """The process did not answer in time, and was killed for it."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"no answer in {limit_s} s")
        self.limit_s = limit_s


@dataclass(slots=True)
class _Asked:
    """A request that is not answered.

    Attributes:
        sent_at: the time of the loop.
        spent_s: the process's CPU time then.
        timer: looks whether the time is over.
    """

    answer: _Answer
    sent_at: float
    spent_s: float
    timer: asyncio.TimerHandle | None = None


class TokenizerChild:
    """A running tokenizer process and the requests it has not answered yet."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        peer: ParentEnd[tokenizer_pb2.TokenizerResponse],
        stderr: Captured,
        on_gone: Callable[[str], None],
    ) -> None:
        self.is_gone = False
        self._process = process
        self._peer = peer
        self._stderr = stderr
        self._on_gone = on_gone
        self._unanswered: dict[int, _Asked] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        *,
        digest: str,
        threads: int,
        memory_bytes: int,
        rendered_bytes: int,
        on_gone: Callable[[str], None],
    ) -> Self:
        """Start a process.

        Args:
            digest: of its model, shown in lists of processes.
            on_gone: told once that it has ended, with its last words.

        Raises:
            Unavailable: the system would not (PROCESS_FAILED).
        """
        stderr = Captured()
        ours, theirs = socket.socketpair()
        numbers = (os.getpid(), theirs.fileno(), threads, memory_bytes, rendered_bytes)
        command = [
            sys.executable,
            "-m",
            "inferflux.gateway.tokenizer.tokenizer_process",
            *map(str, numbers),
            digest,
        ]
        try:
            # Popen, which uses vfork, and not the loop's own way, which forks: gRPC's fork handlers crash or
            # hang a process that has calls under way.
            process = subprocess.Popen(  # noqa: ASYNC220 - returns when the child has begun
                command, stdin=subprocess.DEVNULL, stderr=stderr.fileno(), pass_fds=[theirs.fileno()]
            )
        except OSError as error:
            ours.close()
            stderr.close()
            message = f"the tokenizer process cannot be started: {error}"
            raise Unavailable(message, reason="PROCESS_FAILED") from None
        finally:
            theirs.close()
        try:
            peer = await ParentEnd.open(ours, tokenizer_pb2.TokenizerResponse.FromString)
        except BaseException:
            process.kill()
            process.wait()
            ours.close()
            stderr.close()
            raise
        return cls(process, peer, stderr, on_gone)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: tokenizer_pb2.TokenizerRequest, limit_s: float) -> _Answer:
        """Send a request.

        Args:
            limit_s: of CPU time, where the system tells it of another process; else of time.

        Returns:
            Its answer, or ProcessGoneError, or ProcessLateError: always done after five times the limit.
        """
        loop = asyncio.get_running_loop()
        answer: _Answer = loop.create_future()
        if self.is_gone:
            answer.set_exception(ProcessGoneError(is_blameless=True))
            return answer
        number = request.id
        asked = self._unanswered[number] = _Asked(answer, loop.time(), cpu_s(self.pid))
        asked.timer = loop.call_later(limit_s, self._look, asked, limit_s)

        def settle(done: _Answer) -> None:
            if not done.cancelled():
                done.exception()  # its caller may have gone
            if asked.timer is not None:
                asked.timer.cancel()
            self._unanswered.pop(number, None)

        answer.add_done_callback(settle)
        self._peer.send(request)
        return answer

    def kill(self, *, is_blameless: bool = False) -> None:
        """End the process at once; everything unanswered gets ProcessGoneError."""
        if self.is_gone:
            return
        self.is_gone = True
        spent_s = cpu_s(self.pid)
        self._process.kill()
        cause = cause_in(self._stderr.last_lines())
        for asked in list(self._unanswered.values()):
            if not asked.answer.done():
                worked_s = self._worked_s(asked, spent_s)
                gone = ProcessGoneError(is_blameless=is_blameless, worked_s=worked_s, cause=cause)
                asked.answer.set_exception(gone)
        self._on_gone(cause)

    async def close(self) -> None:
        """Kill the process and wait for its end."""
        self.kill()
        self._peer.close()
        await asyncio.to_thread(self._process.wait)
        await self._listening
        self._stderr.close()

    def _look(self, asked: _Asked, limit_s: float) -> None:
        """Kill the process if it has worked on a request for too long; else look again when it may have."""
        if asked.answer.done():
            return
        loop = asyncio.get_running_loop()
        worked_s = self._worked_s(asked, cpu_s(self.pid))
        if not is_late(worked_s=worked_s, waited_s=loop.time() - asked.sent_at, limit_s=limit_s):
            asked.timer = loop.call_later(max(limit_s - worked_s, _LOOK_AGAIN_S), self._look, asked, limit_s)
            return
        asked.answer.set_exception(ProcessLateError(limit_s))
        self.kill(is_blameless=True)

    def _worked_s(self, asked: _Asked, spent_s: float) -> float:
        """How long the process has worked since a request came: in CPU time, if that is known."""
        held_s = asyncio.get_running_loop().time() - asked.sent_at
        return min(held_s, spent_s - asked.spent_s) if spent_s else held_s

    async def _listen(self) -> None:
        try:
            async for response in self._peer.messages():
                asked = self._unanswered.get(response.id)
                if asked is not None and not asked.answer.done():
                    asked.answer.set_result(response)
        finally:
            self.kill()
