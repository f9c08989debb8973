"""Servers that a test kills, stops and starts again, alone and as members of a cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from inferflux.cli.stack.servers import LOOPBACK, dying_with_parent, free_port, nats_command, valkey_command
from inferflux.common.contract.errors import Unavailable
from inferflux.common.process.private_files import write_private
from inferflux.common.servers.fleet_files import Watched, nats_cluster_lines, sentinel_lines, server_lines


def configured(command: list[str], lines: Iterable[str]) -> list[str]:
    """The command of a server, with more lines in the configuration file that it names last."""
    path = Path(command[-1])
    write_private(path, "\n".join([path.read_text().rstrip("\n"), *lines, ""]))
    return command


def nats_member(
    command: list[str], name: str, listen: str, others: Iterable[str], password: str
) -> list[str]:
    """The command of a nats-server as a member of a cluster.

    Args:
        listen: host:port where the others call it.
        others: where it calls them; itself may be among them.
        password: with which they call. It lets its owner read and send everything.
    """
    return configured(command, [f'server_name: "{name}"', *nats_cluster_lines(listen, others, password)])


def watched_command(
    port: int, data_dir: Path, told: Watched, *, host: str = LOOPBACK, users: Sequence[str] = ()
) -> list[str]:
    """The command of a valkey-server that sentinels watch."""
    return configured(
        valkey_command(port, data_dir, host=host, users=users), server_lines(told, (host, port))
    )


def sentinel_command(port: int, directory: Path, told: Watched, *, host: str = LOOPBACK) -> list[str]:
    """The command of one of the sentinels. Writes its configuration into `directory`."""
    binary = valkey_command(port, directory)[0]
    config = directory / "sentinel.conf"
    lines = [f"bind {host}", f"port {port}", f'dir "{directory}"', *sentinel_lines(told)]
    write_private(config, "\n".join(lines) + "\n")
    return [binary, str(config), "--sentinel"]


class ServerProcess:
    """A server you may kill and start again on the same port and data.

    It dies with the thread that started it, so start it from one that lives as long as it should.

    Args:
        command: what to run.
        port: where it will answer.
        name: for messages.
        log_path: gets its stdout and stderr; None drops them.
    """

    def __init__(self, command: Sequence[str], *, port: int, name: str, log_path: Path | None = None) -> None:
        self.command = list(command)
        self.port = port
        self.name = name
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def nats(cls, store_dir: Path, port: int | None = None) -> ServerProcess:
        """A nats-server, not started yet."""
        port = port or free_port()
        command = nats_command(port, store_dir)
        return cls(command, port=port, name="nats-server", log_path=store_dir / "nats-server.log")

    @classmethod
    def valkey(cls, data_dir: Path, port: int | None = None) -> ServerProcess:
        """A valkey-server, not started yet."""
        port = port or free_port()
        command = valkey_command(port, data_dir)
        return cls(command, port=port, name="valkey-server", log_path=data_dir / "valkey-server.log")

    @property
    def url(self) -> str:
        scheme, tail = ("redis", "/0") if "valkey" in self.name else ("nats", "")
        return f"{scheme}://{LOOPBACK}:{self.port}{tail}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; returns at once (see `wait_ready`)."""
        if self.is_running:
            raise RuntimeError(f"{self.name} runs already")
        with open(self.log_path or os.devnull, "ab") as output:  # noqa: PTH123
            self._process = subprocess.Popen(
                dying_with_parent(self.command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal is for its supervisor to pass on
            )

    def wait_ready(self, timeout_s: float = 10.0) -> None:
        """Return once it answers.

        Raises:
            Unavailable: it ended, or did not answer in time; says what it printed last.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self.is_running:
                raise Unavailable(f"{self.name} ended at its start: {self._last_words()}")
            if self._answers():
                return
            time.sleep(0.01)
        raise Unavailable(
            f"{self.name} did not answer on port {self.port} in {timeout_s} s: {self._last_words()}"
        )

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._end(signal.SIGKILL, 5.0)

    def stop(self, timeout_s: float = 5.0) -> None:
        """SIGTERM; SIGKILL when it has not ended `timeout_s` later."""
        self._end(signal.SIGTERM, timeout_s)

    def pause(self) -> None:
        """SIGSTOP, on return in effect: connections stay open and nothing answers, as with a cut network."""
        os.kill(self.pid, signal.SIGSTOP)
        while not self._is_stopped():
            time.sleep(0.001)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """kill -9 and start again, ready on return."""
        self.kill()
        self.start()
        self.wait_ready()

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None

    def _is_stopped(self) -> bool:
        tasks = Path(f"/proc/{self.pid}/task")
        if not tasks.exists():
            found = subprocess.run(
                ["/bin/ps", "-o", "stat=", "-p", str(self.pid)], capture_output=True, check=False
            )
            return found.stdout.strip().startswith(b"T")
        return all(
            (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in tasks.iterdir()
        )

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self.port), 0.5) as peer:
            peer.settimeout(0.5)
            if "valkey" in self.name:
                peer.sendall(b"PING\r\n")
                return peer.recv(16).startswith((b"+PONG", b"-NOAUTH"))
            return peer.recv(5) == b"INFO "
        return False

    def _last_words(self) -> str:
        if self.log_path is None or not self.log_path.exists():
            return "(no log)"
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "(nothing printed)"
