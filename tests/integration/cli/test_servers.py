"""Starting, killing and restarting the real servers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.servers import ServerProcess

from inferflux.cli.stack import servers
from inferflux.cli.stack.servers import LOOPBACK, free_port
from inferflux.common.contract.errors import Unavailable


@pytest.fixture(params=["nats", "valkey"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> ServerProcess:
    make = {"nats": ServerProcess.nats, "valkey": ServerProcess.valkey}[request.param]
    return make(tmp_path / "data")


def test_a_server_starts_restarts_and_ends(server: ServerProcess) -> None:
    server.start()
    try:
        server.wait_ready()
        first = server.pid
        with pytest.raises(RuntimeError, match="runs already"):
            server.start()
        server.restart()
        assert server.pid != first
        assert server.is_running
        last = server.pid
    finally:
        server.stop()
    assert not server.is_running
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)
    server.stop()  # harmless


def test_a_taken_port_is_told_with_the_servers_own_words(server: ServerProcess) -> None:
    with socket.create_server((LOOPBACK, server.port)):
        server.start()
        try:
            with pytest.raises(Unavailable) as caught:
                server.wait_ready(5)
        finally:
            server.kill()
    assert server.name in caught.value.message
    assert str(server.port) in caught.value.message or "in use" in caught.value.message


def test_a_server_that_does_not_answer_times_out(tmp_path: Path) -> None:
    server = ServerProcess(["sleep", "60"], port=free_port(), name="nats-server", log_path=tmp_path / "log")
    server.command[0] = "/bin/sleep"
    server.start()
    try:
        with pytest.raises(Unavailable, match="did not answer"):
            server.wait_ready(0.2)
    finally:
        server.kill()


def test_servers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from harness.servers import ServerProcess\n"
        "s = ServerProcess.nats(Path(sys.argv[1])); s.start(); s.wait_ready()\n"
        "print(s.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "nats")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 10
    while _is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_free_ports_are_below_the_ephemeral_range() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(free_port() < lowest for _ in range(20))


def test_a_port_is_given_out_once_while_nothing_listens_on_it_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_port(), free_port()

    class Dice:
        throws = iter([first, first, second, second])

        def randint(self, _low: int, _high: int) -> int:
            return next(self.throws, second + 1)

    monkeypatch.setattr(servers, "_SYSTEM_RANDOM", Dice())
    assert free_port() not in (first, second)
