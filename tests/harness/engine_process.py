"""The engine process by itself, without a worker."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.worker import DEMO_MODEL

from inferflux.common.process.child.frames import ChildEnd
from inferflux.v1 import engine_pb2


@dataclass(frozen=True)
class Engine:
    """An engine that has loaded its model or refused it, with the worker's end of its socket and the write
    end of its lifeline.

    Attributes:
        first: what it reported first.
    """

    process: subprocess.Popen[bytes]
    socket: socket.socket
    channel: ChildEnd[engine_pb2.EngineReport]
    lifeline: int
    first: engine_pb2.EngineReport

    @property
    def ready(self) -> engine_pb2.EngineReady:
        """What it said when it was ready."""
        assert self.first.HasField("ready"), self.first.load_error
        return self.first.ready


@contextmanager
def engine(**options: Any) -> Iterator[Engine]:
    """One with the demo model and a small cache, unless `options` of EngineConfig say otherwise."""
    usual: dict[str, Any] = {
        "model_path": str(DEMO_MODEL),
        "slots": 1,
        "sequences": 1,
        "kv_cells": 512,
        "batch_tokens": 32,
    }
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    note = os.open(os.devnull, os.O_WRONLY)
    inherited = (theirs.fileno(), read_end, note)
    with (
        ours,
        subprocess.Popen(
            [sys.executable, "-m", "inferflux.worker.engine", *map(str, inherited)], pass_fds=inherited
        ) as process,
    ):
        theirs.close()
        os.close(read_end)
        os.close(note)
        channel = ChildEnd(ours, engine_pb2.EngineReport.FromString)
        channel.send(engine_pb2.EngineCommand(load=engine_pb2.EngineConfig(**usual | options)))
        yield Engine(process, ours, channel, write_end, channel.receive())
