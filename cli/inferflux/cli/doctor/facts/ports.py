"""Owners of ports of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from inferflux.cli.doctor.seen import Port
from inferflux.cli.stack.ports import bind_errno

_LISTENS = "0A"


def look(ports: Iterable[Port], proc: Path = Path("/proc")) -> list[Port]:
    """The same ports, each with what has it now."""
    ports = list(ports)
    errors = {port.address: bind_errno(port.host, port.port) for port in ports}
    taken = {port.port for port in ports if errors[port.address]}
    owners = _owners(taken, proc) if taken else {}
    return [
        replace(
            port,
            bind_errno=errors[port.address],
            pid=owners.get(port.port) if errors[port.address] else None,
            command=_command(owners[port.port], proc) if port.port in owners else "",
        )
        for port in ports
    ]


def _owners(ports: set[int], proc: Path) -> dict[int, int]:
    """The process that listens at each port, where this user may see it (Linux)."""
    inodes = {}
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / table).read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                port = int(local.rpartition(":")[2], 16)
                if state == _LISTENS and port in ports:
                    inodes[f"socket:[{inode}]"] = port
    found: dict[int, int] = {}
    for process in proc.iterdir() if inodes else ():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                for link in (process / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        taken = inodes.get(str(link.readlink()))
                        if taken is not None:
                            found.setdefault(taken, int(process.name))
    return found


def _command(pid: int, proc: Path) -> str:
    """The command of a process, without arguments that may be secrets: its program and module."""
    with contextlib.suppress(OSError):
        words = (proc / str(pid) / "cmdline").read_text(errors="replace").split("\0")
        module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
        scripts = [Path(word).name for word in words[1:2] if word.startswith("/")]
        return " ".join([Path(words[0]).name, *([module] if module else scripts)])
    return ""
