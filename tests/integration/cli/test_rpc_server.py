"""`inferctl rpc-server`, as a process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inferflux.cli.stack.servers import free_port
from inferflux.worker.engine.llama.rpc_servers import RpcServerError, check_server

_WAIT_S = 30.0
_WARNING = "private networks only"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "inferflux.cli", "rpc-server", *arguments]


def until_it_answers(process: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            check_server(endpoint)
        except RpcServerError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        else:
            return


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])  # noqa: S104
def test_it_serves_until_ctrl_c_and_warns_where_others_reach_it(
    tmp_path: Path, host: str, warns: bool
) -> None:
    port, log = free_port(), tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command("--listen", f"{host}:{port}", "--threads", "1"), stdout=file, stderr=file
        )
    try:
        until_it_answers(process, f"127.0.0.1:{port}", log)
        process.send_signal(signal.SIGINT)
        assert process.wait(_WAIT_S) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()
    assert (_WARNING in log.read_text()) is warns


def test_what_cannot_be_served_is_refused_by_the_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, said in (
            (["--listen", f"127.0.0.1:{port}"], f"--listen: 127.0.0.1:{port}: Address already in use"),
            (["--listen", "here"], "--listen: 'here' is not host:port"),
            (["--listen", f"127.0.0.1:{free_port()}", "--device", "CUDA7"], "--device: there is no CUDA7"),
        ):
            done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False)
            assert done.returncode == 2
            assert said in done.stderr
