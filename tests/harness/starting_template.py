"""The process that `starting` forks services from: `python starting_template.py MODULE SOCKET`.

Without SOCKET it runs MODULE itself, as `python -m` does, with constants that a test has other values for.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from importlib.util import find_spec

# Of a request, before it; and of what is told of a child: its process id, then its status.
SIZE, STATUS = struct.Struct("I"), struct.Struct("i")
# A variable of this and `module:CONSTANT`, or `module:CONSTANT.field`, has the constant's value in JSON.
PATCH = "patch "


def serve(asking: socket.socket) -> list[str]:
    """Fork for each request until the other end is closed; returns in each child, with its command line."""
    running: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([asking.fileno(), woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            reap(running)
        if asking.fileno() not in readable:
            continue
        head, given, _, _ = socket.recv_fds(asking, SIZE.size, 4)
        if not head:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        (size,) = SIZE.unpack(head)
        asked = b""
        while len(asked) < size:
            asked += asking.recv(size - len(asked))
        command, directory, env, is_leader = json.loads(asked)
        *streams, told = given
        pid = os.fork()
        if pid:
            for stream in streams:
                os.close(stream)
            running[pid] = told
            reap(running)
            continue
        if is_leader:
            os.setsid()
        os.write(told, STATUS.pack(os.getpid()))
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for end in (*streams, told, woken, wake, *running.values()):
            with contextlib.suppress(OSError):
                os.close(end)
        asking.close()
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(env)
        return list(command)


def reap(running: dict[int, int]) -> None:
    """Pass on the status of each child that ended."""
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            told = running.pop(pid)
            with contextlib.suppress(OSError):
                os.write(told, STATUS.pack(status))
            os.close(told)


def patch_constants(env: MutableMapping[str, str], put: Callable[..., None] = setattr) -> None:
    """Take the constants and their values out of an environment, and `put` each where it is defined.

    A public constant is put into the modules that have imported it, too.
    """
    for variable in [name for name in env if name.startswith(PATCH)]:
        module, _, place = variable.removeprefix(PATCH).partition(":")
        constant, _, field = place.partition(".")
        owner, value = importlib.import_module(module), json.loads(env.pop(variable))
        before = getattr(owner, constant)
        was = getattr(before, field) if field else before
        assert type(was) is type(value), f"{variable} is {was!r}"
        after = replace(before, **{field: value}) if field else value
        for holder in [owner] if constant.startswith("_") else list(sys.modules.values()):
            if getattr(holder, "__dict__", {}).get(constant) is before:
                put(holder, constant, after)


def main() -> None:
    module, *number = sys.argv[1:]
    package = find_spec(module)
    assert package is not None
    sys.path.pop(0)
    importlib.import_module(f"{module}.app")
    importlib.import_module(f"{module}.__main__")
    sys.modules.pop(f"{module}.__main__")
    gc.freeze()
    sys.argv = serve(socket.socket(fileno=int(number[0]))) if number else [module]
    patch_constants(os.environ)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
