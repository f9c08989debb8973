"""The witness: a child of the worker that reports its parent's death at once.

    python -m inferflux.worker.witness FD

A scheduler cannot tell a dead worker from one whose connection is being made again: NATS shows the same
of both. The kernel can: it closes the worker's end of a socket pair when the process is gone, whatever ended
it, and at no other time. The witness then publishes `WorkerDied`, and ends. It says nothing where the whole
machine is gone, or the network: there the scheduler goes by silence.

The worker first writes one line of JSON, an `Oath`. When it leaves in order it writes one more byte.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from inferflux.common import subjects
from inferflux.common.bus import Bus
from inferflux.common.errors import InferFluxError
from inferflux.common.tls import TlsFiles
from inferflux.v1 import scheduler_pb2

# To connect and publish; by then the worker's silence tells.
_LIMIT_S = 3.0
_LEFT_IN_ORDER = b"."


@dataclass(frozen=True, slots=True)
class Oath:
    """What the witness publishes, and where."""

    nats_url: str
    worker_id: str
    event: bytes
    tls: TlsFiles = field(default_factory=TlsFiles)

    @classmethod
    def of(cls, nats_url: str, worker_id: str, incarnation: str, tls: TlsFiles) -> Oath:
        event = scheduler_pb2.WorkerEvent(worker_id=worker_id, incarnation=incarnation)
        event.worker_died.SetInParent()
        return cls(nats_url, worker_id, event.SerializeToString(), tls)

    def to_line(self) -> bytes:
        fields = asdict(self) | {"event": base64.b64encode(self.event).decode()}
        return json.dumps(fields, default=str).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Oath:
        fields = json.loads(line)
        cert, key, ca = (fields["tls"][name] and Path(fields["tls"][name]) for name in ("cert", "key", "ca"))
        tls = TlsFiles(cert, key, ca, variable=fields["tls"]["variable"])
        return cls(fields["nats_url"], fields["worker_id"], base64.b64decode(fields["event"]), tls)


@contextlib.contextmanager
def witness(oath: Oath) -> Iterator[int]:
    """Have a witness for as long as this lasts; yields its process id.

    Leaving by an exception counts as death.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "inferflux.worker.witness", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # What ends the worker's process group must not end its witness.
                start_new_session=True,
            )
        ours.sendall(oath.to_line())
        yield process.pid
        with contextlib.suppress(OSError):  # the witness may have been killed
            ours.sendall(_LEFT_IN_ORDER)
    process.wait()


def main(fd: int) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):  # it ends with its parent
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=fd) as sock, sock.makefile("rb") as parent:
        line = parent.readline()
        if not line.endswith(b"\n") or parent.read(1) == _LEFT_IN_ORDER:
            return 0
    try:
        asyncio.run(_publish(Oath.from_line(line)))
    except InferFluxError as error:
        sys.stderr.write(f"a worker's death could not be reported: {error.message}\n")
        return 1
    return 0


async def _publish(oath: Oath) -> None:
    name = f"witness-{oath.worker_id}"
    bus = await Bus.connect(oath.nats_url, name=name, connect_timeout_s=_LIMIT_S, tls=oath.tls)
    try:
        await bus.publish(subjects.SCHEDULER_EVENTS, oath.event)
        await bus.flush()
    finally:
        await bus.close()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
