"""The engine process by itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from harness.worker import DEMO_MODEL

from inferflux.common.frames import ChildEnd
from inferflux.v1 import engine_pb2


def test_an_engine_ends_with_its_lifeline_though_its_channel_is_open() -> None:
    """Its parent may be killed where the kernel does not tell a child."""
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    inherited = (theirs.fileno(), read_end)
    with (
        ours,
        subprocess.Popen(
            [sys.executable, "-m", "inferflux.worker.engine", *map(str, inherited)], pass_fds=inherited
        ) as engine,
    ):
        theirs.close()
        os.close(read_end)
        channel = ChildEnd(ours, engine_pb2.EngineReport.FromString)
        config = engine_pb2.EngineConfig(
            model_path=str(DEMO_MODEL), slots=1, sequences=1, kv_cells=64, batch_tokens=32
        )
        channel.send(engine_pb2.EngineCommand(load=config))
        assert channel.receive().HasField("ready")
        os.close(write_end)
        assert engine.wait(30) == 0
