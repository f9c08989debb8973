"""Engine processes: started when they are needed, or ahead."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Final, Self

from inferflux.common.process.child.captured import Captured

# What a process runs.
ENGINE, EMBEDDER = "inferflux.worker.engine", "inferflux.worker.embedder"

# llama.cpp's threads meet at a barrier some hundred times a step. How long a thread spins there before it
# sleeps decides much. OpenMP's default burns whole time slices whenever one of them has to share its core
# with anything else. A virtual core that sleeps may be given to another machine and come back late, so that
# sleeping soon costs up to a third of the speed where its host is busy. This is some milliseconds.
SPIN_COUNT: Final = "100000"
# An embedder computes for long between its barriers. While it spins, the gateway and policy, which have a
# whole request for each of its texts, cannot run on that core.
EMBEDDER_SPIN_COUNT: Final = "0"


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A process that waits to be told what to load.

    Attributes:
        socket: this end of its channel.
        lifeline: the process ends when this is closed.
        stderr: what it prints.
        note: what it computes that may end it: see `engine.image_note`.
    """

    process: subprocess.Popen[bytes]
    socket: socket.socket
    lifeline: int
    stderr: Captured
    note: Captured

    @classmethod
    def start(cls, module: str) -> Self:
        spin_count = EMBEDDER_SPIN_COUNT if module == EMBEDDER else SPIN_COUNT
        ours, theirs = socket.socketpair()
        lifeline_end, lifeline = os.pipe()
        stderr, note = Captured(), Captured()
        inherited = (theirs.fileno(), lifeline_end, note.fileno())
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, inherited)],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stderr=stderr.fileno(),
                env={"GOMP_SPINCOUNT": spin_count, **os.environ},
            )
        except BaseException:
            ours.close()
            os.close(lifeline)
            stderr.close()
            note.close()
            raise
        finally:
            theirs.close()
            os.close(lifeline_end)
        return cls(process, ours, lifeline, stderr, note)

    def discard(self) -> None:
        """End one that was told nothing."""
        self.process.kill()
        self.process.wait()
        self.socket.close()
        self.close()

    def close(self) -> None:
        """Once it has ended; its socket is closed by then."""
        os.close(self.lifeline)
        self.stderr.close()
        self.note.close()


class SpareEngine:
    """Keeps an engine process started ahead. Starting Python and importing llama.cpp's bindings takes as long
    as loading a small model does.
    """

    def __init__(self) -> None:
        self._spare: EngineProcess | None = None

    def prepare(self) -> None:
        """Start one, if there is none. Without one, engines are started when they are needed."""
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = EngineProcess.start(ENGINE)

    def take(self, module: str) -> EngineProcess:
        """A process that runs `module`: the spare one, if it is of that kind and lives."""
        spare = self._spare
        if spare is None or module != ENGINE:
            return EngineProcess.start(module)
        self._spare = None
        if spare.process.poll() is None:
            return spare
        spare.discard()
        return EngineProcess.start(module)

    def close(self) -> None:
        """End the spare one."""
        if self._spare is not None:
            self._spare.discard()
            self._spare = None
