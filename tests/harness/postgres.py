"""A PostgreSQL server of Debian's package, for tests; where there is none they are skipped."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from inferflux.cli.stack.servers import free_port

_PACKAGED = "/usr/lib/postgresql/*/bin"
_START_S = 60.0
# The user without rights, as Linux numbers it.
_NO_ONE = 65534


class Postgres:
    """A server on loopback, with a cluster of its own that goes with it. It does not run as root."""

    def __init__(self) -> None:
        self._bin = _binaries()
        self._port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="inferflux-postgres-"))
        self._owner = _other_user() if os.geteuid() == 0 else None
        if self._owner is not None:
            os.chown(self._folder, self._owner.pw_uid, self._owner.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0

    def empty_database(self) -> str:
        """The URL of a new database."""
        self._made += 1
        name = f"policy{self._made}"
        at = ("-h", "127.0.0.1", "-p", str(self._port), "-U", "policy")
        assert self._spawn("createdb", *at, name).wait() == 0, (self._folder / "log").read_text()
        return f"postgresql://policy@127.0.0.1:{self._port}/{name}"

    def start(self) -> None:
        data = self._folder / "data"
        if not data.exists():
            self._spawn("initdb", "-D", str(data), "-U", "policy", "--auth=trust", "--no-sync").wait()
        options = ("-c", "listen_addresses=127.0.0.1", "-c", "fsync=off")
        self._process = self._spawn(
            "postgres", "-D", str(data), "-p", str(self._port), "-k", str(self._folder), *options
        )
        deadline = time.monotonic() + _START_S
        while self._spawn("pg_isready", "-h", "127.0.0.1", "-p", str(self._port)).wait() != 0:
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, "waited in vain for PostgreSQL"
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        user = self._owner.pw_uid if self._owner else None
        group = self._owner.pw_gid if self._owner else None
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self._bin / program, *arguments],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                user=user,
                group=group,
                extra_groups=[] if self._owner else None,
            )


def _binaries() -> Path:
    on_path = shutil.which("initdb")
    folders = [Path(on_path).parent] if on_path else []
    folders += sorted(Path("/").glob(_PACKAGED.lstrip("/")))
    for folder in folders:
        if all((folder / name).exists() for name in ("initdb", "postgres", "pg_isready")):
            return folder
    pytest.skip("PostgreSQL is not installed (Debian's package `postgresql`)")


def _other_user() -> pwd.struct_passwd:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    try:
        return pwd.getpwuid(_NO_ONE)
    except KeyError:
        pytest.skip(
            "PostgreSQL does not run as root, and there is no user `postgres` and none without rights"
        )
