"""What the stack of this machine leaves on disk: its key, its data, its logs, and where it is to be reached.

bootstrap.key   the admin key, made once, so that clients keep working over restarts
service.key     what the services prove themselves to policy with
stack.json      where the running stack is reached; there only while one runs
stack.lock      held by the running stack; holds its pid
chat_history    what was typed into `inferctl chat`
logs/NAME.log   one per process; the previous run's is NAME.log.1
audit/          the audit trail, a folder for each process, and the key of its hashes
nats/ valkey/   the servers' data
kv/             computed prompts, in a numbered folder for each worker; can be deleted at any time
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import CommandError

_PID_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class StackState:
    """The running stack, as stack.json tells it."""

    pid: int
    endpoint: str
    api_key: str
    nats_url: str
    redis_url: str
    model: str
    processes: Mapping[str, int]
    metrics: Mapping[str, str]

    @classmethod
    def from_json(cls, text: str) -> StackState:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"not a stack.json: {error}") from None

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def default_path(env: Mapping[str, str]) -> Path:
    """$INFERFLUX_STATE_DIR, else $XDG_STATE_HOME/inferflux, else ~/.local/state/inferflux."""
    if given := env.get("INFERFLUX_STATE_DIR"):
        return Path(given).expanduser().absolute()
    return home_path(env)


def home_path(env: Mapping[str, str]) -> Path:
    """Where commands look that were told nothing: $XDG_STATE_HOME/inferflux or ~/.local/state/inferflux."""
    base = env.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "inferflux"


@dataclass(frozen=True, slots=True)
class StateDir:
    """The directory itself. Its files are for its owner alone."""

    path: Path

    @property
    def stack_file(self) -> Path:
        return self.path / "stack.json"

    def log_file(self, process: str) -> Path:
        return self.path / "logs" / f"{process}.log"

    def prepare(self) -> None:
        """Make the directory.

        Raises:
            CommandError: it cannot be made or written to.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.path / "logs").mkdir(exist_ok=True)
        except OSError as error:
            raise CommandError(f"cannot use {self.path}: {error.strerror} (--state-dir)") from None
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise CommandError(f"cannot write into {self.path} (--state-dir)")

    def api_key(self) -> str:
        """The bootstrap key: the one kept here, or a new one, kept from now on."""
        return self._kept("bootstrap.key", lambda: f"ifx_{secrets.token_urlsafe(32)}")

    def service_key(self) -> str:
        """The secret that services share: the one kept here, or a new one, kept from now on."""
        return self._kept("service.key", lambda: secrets.token_urlsafe(32))

    def _kept(self, name: str, draw: Callable[[], str]) -> str:
        path = self.path / name
        with contextlib.suppress(FileNotFoundError):
            if key := path.read_text().strip():
                return key
        key = draw()
        _write_private(path, key + "\n")
        return key

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the one stack of this directory.

        Raises:
            CommandError: another one runs; says its pid.
        """
        with (self.path / "stack.lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(
                    f"InferFlux runs already here (pid {_read_pid(file.name)}, state in {self.path}): "
                    "end it first, or give this one its own --state-dir and ports"
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            try:
                yield
            finally:
                self.stack_file.unlink(missing_ok=True)
                file.truncate(0)

    def has_leftovers(self) -> bool:
        """Whether the last stack ended without tidying up: its processes may still be on their way out."""
        return self.stack_file.exists()

    def publish(self, state: StackState) -> None:
        """Tell clients of this machine where the stack is."""
        _write_private(self.stack_file, state.to_json())

    def running(self) -> StackState | None:
        """The stack that runs now, if one does."""
        try:
            with (self.path / "stack.lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            pass
        except OSError:
            return None
        with contextlib.suppress(OSError, ValueError):
            return StackState.from_json(self.stack_file.read_text())
        return None


def _write_private(path: Path, text: str) -> None:
    """Replace a file as a whole, readable by its owner alone from its first byte on."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    scratch.replace(path)


def _read_pid(path: str) -> str:
    """The pid in the lock file; its owner may be about to write it."""
    deadline = time.monotonic() + _PID_WAIT_S
    while time.monotonic() < deadline:
        if pid := Path(path).read_text().strip():
            return pid
        time.sleep(0.01)
    return "unknown"
