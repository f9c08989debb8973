"""ggml's RPC servers as `inferctl rpc-server` runs them, on loopback."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from inferflux.cli.stack.servers import free_port
from inferflux.worker.engine.llama.rpc_servers import RpcServerError, check_server

_WAIT_S = 30.0
_FLAGS = ("--device", "CPU", "--threads", "1")


class RpcServer:
    """One that can be killed and started again, on the same port."""

    def __init__(self, log_path: Path) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "inferflux.worker.rpc_server", "--listen", self.endpoint, *_FLAGS],
                stdout=log,
                stderr=log,
                env=os.environ | {"INFERFLUX_EXIT_WITH_PARENT": "true"},
            )
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                check_server(self.endpoint)
            except RpcServerError:
                assert self._process.poll() is None, self._log_path.read_text()
                assert time.monotonic() < deadline, self._log_path.read_text()
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def rpc_servers(directory: Path, n: int = 2) -> Iterator[list[RpcServer]]:
    servers = [RpcServer(directory / f"rpc-{i}.log") for i in range(n)]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()


def endpoints(servers: list[RpcServer]) -> str:
    """As INFERFLUX_WORKER_RPC_SERVERS has them."""
    return ",".join(server.endpoint for server in servers)
