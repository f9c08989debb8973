"""State directory of this machine's stack: its keys, data, logs and addresses.

bootstrap.key   the admin key, made once, so that clients keep working over restarts
service.key     what the services prove themselves to policy with
passwords.json  of the users of NATS and Redis, made once
env/KIND.sh     what one more service needs to join the stack, for a shell
tls/            CA and certificates of a stack with TLS; the certificates are new at every start
nats-users.conf what each user of NATS may do, for nats-server
access.lock     held while users are changed
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
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from inferflux.api.tls import Tls
from inferflux.common.process.private_files import write_private

from .errors import CommandError

# The admin key is this tenant's, and its tokens can be read on every stack.
FIRST_TENANT = "default"
_PID_WAIT_S = 1.0
# nats-server and valkey-server would read these otherwise in a path of their configuration.
_UNFIT = '"\\'


@dataclass(frozen=True, slots=True)
class StackState:
    """The running stack, as stack.json tells it.

    Attributes:
        endpoint: of its gateways, comma-separated.
        nats_url: of a user who may do everything, and `redis_url` as well.
        tokens_url: of a user of NATS who reads the tokens of the tenant `default` alone.
        tls_ca: the file of the stack's CA; empty: it speaks plain text.
    """

    pid: int
    endpoint: str
    api_key: str
    nats_url: str
    redis_url: str
    model: str
    processes: Mapping[str, int]
    metrics: Mapping[str, str]
    tokens_url: str = ""
    tls_ca: str = ""

    @property
    def tls(self) -> Tls:
        """TLS settings for its gateway."""
        return Tls(self.tls_ca)

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
    """Default state directory of commands: $XDG_STATE_HOME/inferflux or ~/.local/state/inferflux."""
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
            CommandError: it cannot be made or written to, or its servers cannot be configured with its name.
        """
        unfit = sorted({each for each in str(self.path) if each in _UNFIT or not each.isprintable()})
        if unfit:
            raise CommandError(f"the name {str(self.path)!r} cannot have {unfit[0]!r} in it (--state-dir)")
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
        write_private(path, key + "\n")
        return key

    @property
    def nats_users_file(self) -> Path:
        return self.path / "nats-users.conf"

    @property
    def certificates(self) -> Path:
        return self.path / "tls"

    def passwords(self, server: str, users: Iterable[str] = ()) -> dict[str, str]:
        """Passwords by user of a server (`nats`, `redis`): those kept here, and a new one for each of
        `users` without one, kept from now on.

        Raises:
            CommandError: the file holds something else.
        """
        path = self.path / "passwords.json"
        try:
            kept = json.loads(path.read_text()) if path.exists() else {}
            known: dict[str, str] = {**kept.get(server, {})}
        except (ValueError, AttributeError, TypeError):
            raise CommandError(f"{path} is damaged: remove it, and new passwords are made") from None
        missing = [user for user in users if user not in known]
        known |= {user: secrets.token_urlsafe(24) for user in missing}
        if missing:
            write_private(path, json.dumps({**kept, server: known}, indent=2) + "\n")
        return known

    def write_environment(self, kind: str, variables: Mapping[str, str]) -> None:
        """Write down what one more service of a kind needs, for a shell to read."""
        folder = self.path / "env"
        folder.mkdir(mode=0o700, exist_ok=True)
        lines = (f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        write_private(folder / f"{kind}.sh", "".join(lines))

    def forget_password(self, server: str, user: str) -> None:
        """Let a user of a server have no password any more."""
        known = self.passwords(server)
        known.pop(user, None)
        path = self.path / "passwords.json"
        write_private(path, json.dumps({**json.loads(path.read_text()), server: known}, indent=2) + "\n")

    @contextlib.contextmanager
    def changing_access(self) -> Iterator[None]:
        """One command at a time changes users: it reads all of them, and writes all of them."""
        with (self.path / "access.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

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
        """True if the last stack ended without tidying up: its processes may still be on their way out."""
        return self.stack_file.exists()

    def publish(self, state: StackState) -> None:
        """Tell clients of this machine where the stack is."""
        write_private(self.stack_file, state.to_json())

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


def _read_pid(path: str) -> str:
    """The pid in the lock file; its owner may be about to write it."""
    deadline = time.monotonic() + _PID_WAIT_S
    while time.monotonic() < deadline:
        if pid := Path(path).read_text().strip():
            return pid
        time.sleep(0.01)
    return "unknown"
