"""Services and inferctl as processes, without their imports each time.

A template per module imports it once, and forks: each start is a process of its own, with an environment of
its own, which runs the module as `python -m` does. With `pytest --plain-starts`, `python -m` starts each.

Times and limits that no deployment varies are constants. A test that would wait for one names it in the
environment of a start (`patched`), and the new process has the test's value.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.starting_template import PATCH, SIZE, STATUS

from inferflux.cli.stack import process as stack_process

SERVICES = tuple(f"inferflux.{service}" for service in ("gateway", "policy", "scheduler", "worker"))
_TEMPLATE = Path(__file__).with_name("starting_template.py")
_templates: dict[str, tuple[subprocess.Popen[bytes], socket.socket]] = {}
_is_plain = False


def use_plain_starts() -> None:
    """Have `python -m` start every process from here on."""
    global _is_plain
    _is_plain = True


def adopt_stacks() -> None:
    """Have the stacks of this process start services so, too."""
    own = SimpleNamespace(**vars(subprocess) | {"Popen": start_command})
    setattr(stack_process, "subprocess", own)  # noqa: B010 - mypy takes it for a module's own name


def patched(place: str, value: float) -> dict[str, Any]:
    """The variable with which a service has another value for `module:CONSTANT`, or `module:CONSTANT.field`.

    A start fails if there is no such constant, or one of another type. Values that were read while modules
    were imported, as those of default arguments, stay.
    """
    return {PATCH + place: json.dumps(value)}


def start(module: str, *arguments: str, env: Mapping[str, str], **streams: Any) -> subprocess.Popen[bytes]:
    """`python -m MODULE ARGUMENTS`; `streams` are Popen's `stdin`, `stdout` and `stderr`."""
    start_one = _start_plain if _is_plain else _Forked
    return start_one([sys.executable, "-m", module, *arguments], env=env, **streams)


def start_command(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
    """A service as `inferctl up` starts it, which ends with its parent; anything else as it stands."""
    if _is_plain or command[-2:-1] != ["-m"] or command[-1] not in SERVICES:
        return _start_plain(command, **how)
    return _Forked([sys.executable, *command[-2:]], **how)


def _start_plain(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
    if command[-1] in SERVICES and any(name.startswith(PATCH) for name in how.get("env", ())):
        command = [*command[:-2], str(_TEMPLATE), command[-1]]
    return subprocess.Popen(command, **how)


class _Forked(subprocess.Popen[bytes]):
    """A child of a template, which waits for it and passes its status on."""

    _told: int

    def _execute_child(self, args: list[str], *more: Any) -> None:
        # Popen's order: executable, preexec_fn, close_fds, pass_fds, cwd, env, three more, six ends of pipes,
        # restore_signals, four ids, umask, start_new_session.
        env, pipes = more[5], more[9:15]
        streams = [number if end == -1 else end for number, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        asked = json.dumps([args[2:], str(Path.cwd()), dict(env), more[-2]]).encode()
        self._told, template_end = os.pipe()
        template = _template(args[2])
        socket.send_fds(template, [SIZE.pack(len(asked))], [*streams, template_end])
        template.sendall(asked)
        os.close(template_end)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        (self.pid,) = STATUS.unpack(os.read(self._told, STATUS.size))
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._told], [], [], 0)[0]:
            return 0, 0
        # Nothing to read: the template is gone, and ended its children.
        (status,) = STATUS.unpack(os.read(self._told, STATUS.size) or STATUS.pack(9))
        os.close(self._told)
        return self.pid, status

    def _internal_poll(self, *_more: Any, **_named: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def _template(module: str) -> socket.socket:
    """The connection to a module's template, which ends when this process does."""
    if module not in _templates:
        ours, theirs = socket.socketpair()
        env = {name: value for name, value in os.environ.items() if not name.startswith("INFERFLUX_")}
        command = [sys.executable, str(_TEMPLATE), module, str(theirs.fileno())]
        _templates[module] = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()]), ours
        theirs.close()
    return _templates[module][1]


@atexit.register
def _end_templates() -> None:
    for process, connection in _templates.values():
        connection.close()
        process.wait()
