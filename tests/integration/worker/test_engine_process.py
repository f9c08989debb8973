"""The engine process by itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.worker import DEMO_MODEL, batch_item

from inferflux.common.frames import ChildEnd
from inferflux.v1 import engine_pb2


@dataclass(frozen=True)
class Engine:
    """An engine that is ready, with the worker's end of its socket and the write end of its lifeline."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    channel: ChildEnd[engine_pb2.EngineReport]
    lifeline: int


@contextmanager
def engine(disk_path: str = "") -> Iterator[Engine]:
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    inherited = (theirs.fileno(), read_end)
    with (
        ours,
        subprocess.Popen(
            [sys.executable, "-m", "inferflux.worker.engine", *map(str, inherited)], pass_fds=inherited
        ) as process,
    ):
        theirs.close()
        os.close(read_end)
        channel = ChildEnd(ours, engine_pb2.EngineReport.FromString)
        config = engine_pb2.EngineConfig(
            model_path=str(DEMO_MODEL),
            slots=1,
            sequences=1,
            kv_cells=512,
            batch_tokens=32,
            disk_path=disk_path,
            disk_bytes=1 << 30,
        )
        channel.send(engine_pb2.EngineCommand(load=config))
        assert channel.receive().HasField("ready")
        yield Engine(process, ours, channel, write_end)


def test_an_engine_ends_with_its_lifeline_though_its_channel_is_open() -> None:
    """Its parent may be killed where the kernel does not tell a child."""
    with engine() as one:
        os.close(one.lifeline)
        assert one.process.wait(30) == 0


def test_an_engine_whose_worker_is_gone_leaves_on_disk_what_a_request_has_computed(tmp_path: Path) -> None:
    with engine(str(tmp_path)) as one:
        start = batch_item("a", model="m", prompt=list(range(300, 364)), max_tokens=400)
        one.channel.send(engine_pb2.EngineCommand(start=start))
        while not any(emission.generated_tokens for emission in one.channel.receive().step.emissions):
            pass
        one.socket.close()
        assert one.process.wait(30) == 0
        os.close(one.lifeline)
    assert len(list(tmp_path.glob("*/*.kv"))) == 1
