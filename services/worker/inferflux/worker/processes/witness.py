"""The witness: a child of the worker process that reports its parent's death at once.

    python -m inferflux.worker.processes.witness FD

A scheduler cannot tell a dead worker from one whose connection is being made again: NATS shows the same
of both. The kernel can: it closes the worker's end of a socket pair when the process is gone, whatever ended
it, and at no other time. The witness then publishes `WorkerDied` of each worker that was there, and ends.
It says nothing where the whole machine is gone, or the network: there the scheduler goes by silence.

The parent writes lines of JSON: first where NATS is, then which workers there are, each time that changes.
When it leaves in order it writes one more byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError
from inferflux.common.process.tls import TlsFiles
from inferflux.v1 import scheduler_pb2

# To connect and publish; by then the worker's silence tells.
_LIMIT_S = 3.0
_LEFT_IN_ORDER = b"."


@dataclass(frozen=True, slots=True)
class _Place:
    """Where deaths are published, and for which process."""

    nats_url: str
    process: str
    tls: TlsFiles = field(default_factory=TlsFiles)

    def to_line(self) -> bytes:
        return json.dumps(asdict(self), default=str).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> _Place:
        fields = json.loads(line)
        cert, key, ca = (fields["tls"][name] and Path(fields["tls"][name]) for name in ("cert", "key", "ca"))
        tls = TlsFiles(cert, key, ca, variable=fields["tls"]["variable"])
        return cls(fields["nats_url"], fields["process"], tls)


class Witness:
    """Has a witness for as long as it is entered. Leaving by an exception counts as death.

    Attributes:
        pid: of the child.
    """

    def __init__(self, nats_url: str, process: str, tls: TlsFiles) -> None:
        self._place = _Place(nats_url, process, tls)
        # Incarnations by worker id.
        self._workers: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "inferflux.worker.processes.witness", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # What ends the worker's process group must not end its witness.
                start_new_session=True,
            )
        self.pid = self._child.pid
        self._write(self._place.to_line())
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._write(_LEFT_IN_ORDER)
        self._socket.close()
        self._child.wait()

    def watch(self, worker_id: str, incarnation: str) -> None:
        """From now on the process's death is this worker's."""
        self._workers[worker_id] = incarnation
        self._tell()

    def forget(self, worker_id: str) -> None:
        """That worker is gone in order."""
        self._workers.pop(worker_id, None)
        self._tell()

    def _tell(self) -> None:
        self._write(json.dumps(self._workers).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # the witness may have been killed
            self._socket.sendall(line)


def main(fd: int) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):  # it ends with its parent
        signal.signal(number, signal.SIG_IGN)
    workers: dict[str, str] = {}
    with socket.socket(fileno=fd) as sock, sock.makefile("rb") as parent:
        first = parent.readline()
        for line in parent:
            if line == _LEFT_IN_ORDER:
                return 0
            if line.endswith(b"\n"):
                workers = json.loads(line)
    if not workers:
        return 0
    try:
        asyncio.run(_publish(_Place.from_line(first), workers))
    except InferFluxError as error:
        sys.stderr.write(f"a worker's death could not be reported: {error.message}\n")
        return 1
    return 0


async def _publish(place: _Place, workers: dict[str, str]) -> None:
    name = f"witness-{place.process}"
    bus = await Bus.connect(place.nats_url, name=name, connect_timeout_s=_LIMIT_S, tls=place.tls)
    try:
        for worker_id, incarnation in workers.items():
            event = scheduler_pb2.WorkerEvent(worker_id=worker_id, incarnation=incarnation)
            event.worker_died.SetInParent()
            await bus.publish(subjects.SCHEDULER_EVENTS, event.SerializeToString())
        await bus.flush()
    finally:
        await bus.close()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
