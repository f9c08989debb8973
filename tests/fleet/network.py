"""Hosts that reach each other through one switch, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from inferflux.cli.stack.servers import dying_with_parent

from . import namespaces
from .wire import Quality

_TESTS = Path(__file__).resolve().parents[1]
_ANSWER_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace.

    Attributes:
        port: of the switch, from 1 on.
        namespace: its descriptor.
    """

    name: str
    port: int
    namespace: int

    @property
    def address(self) -> str:
        return namespaces.address_of(self.port)

    @property
    def prefix(self) -> list[str]:
        """What a command is begun with, to run there."""
        return namespaces.inside(self.namespace)


class Network:
    """Namespaces and their switch. Use as a context manager, in a process of its own: this thread, and all
    that it starts afterwards, is in the namespace of the first host.

    Args:
        names: of the hosts.
        seed: of what is lost, and how long frames take.
        say: told of every cut in a sentence.
    """

    def __init__(self, names: Sequence[str], seed: int, *, say: Callable[[str], None]) -> None:
        self._names = list(names)
        self._seed = seed
        self._say = say
        self._lock = threading.Lock()
        self._answers = b""
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_ANSWER_LIMIT_S)
        taps: dict[int, int] = {}
        for port, name in enumerate(self._names, 1):
            namespace, taps[port] = namespaces.make()
            self.hosts[name] = Host(name, port, namespace)
        ports = {host.port: host.name for host in self.hosts.values()}
        for host in self.hosts.values():
            namespaces.configure(host.namespace, host.port, ports)
        # The switch as well: what ends all processes of another host must not end it.
        namespaces.enter(self.hosts[self._names[0]].namespace)
        passed = [theirs.fileno(), *taps.values()]
        arguments = [str(self._seed), str(theirs.fileno()), *(f"{port}:{tap}" for port, tap in taps.items())]
        self._switch = subprocess.Popen(
            dying_with_parent([sys.executable, "-m", "fleet.switch", *arguments]),
            env={**os.environ, "PYTHONPATH": str(_TESTS)},
            pass_fds=passed,
        )
        for descriptor in taps.values():
            os.close(descriptor)
        theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._switch.kill()
        self._switch.wait()
        for host in self.hosts.values():
            os.close(host.namespace)

    def set_quality(self, quality: Quality) -> None:
        """From now on, all frames fare like that."""
        self._ask({"quality": quality.as_dict()})
        self._say(f"the network: {quality}")

    def cut(self, name: str, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Let nothing through from `senders` to `receivers`; all else still comes."""
        froms, tos = list(senders), list(receivers)
        pairs = [[self.hosts[a].port, self.hosts[b].port] for a in froms for b in tos if a != b]
        self._ask({"cut": name, "pairs": pairs})
        self._say(f"cut {name}: nothing from {', '.join(froms)} to {', '.join(tos)}")

    def part(self, name: str, side: Iterable[str], other: Iterable[str]) -> None:
        """Let nothing through between two sides, in either direction."""
        ones, others = list(side), list(other)
        pairs = [[self.hosts[a].port, self.hosts[b].port] for a in ones for b in others]
        self._ask({"cut": name, "pairs": [*pairs, *([b, a] for a, b in pairs)]})
        self._say(f"cut {name}: nothing between {', '.join(ones)} and {', '.join(others)}")

    def isolate(self, name: str, hosts: Iterable[str]) -> None:
        """Cut hosts off from all others; not from each other."""
        side = list(hosts)
        self.part(name, side, [host for host in self.hosts if host not in side])

    def mend(self, name: str) -> None:
        """Mend a cut."""
        self._ask({"mend": name})
        self._say(f"mended {name}")

    def counts(self) -> dict[str, int]:
        """Frames that passed, were lost, and were cut."""
        return self._ask({"counts": True})

    def switch_pid(self) -> int:
        return self._switch.pid

    def _ask(self, what: dict[str, Any]) -> dict[str, int]:
        with self._lock:
            self._control.sendall(json.dumps(what).encode() + b"\n")
            while b"\n" not in self._answers:
                received = self._control.recv(4096)
                if not received:
                    raise ConnectionError("the switch has ended")
                self._answers += received
            line, self._answers = self._answers.split(b"\n", 1)
        answer: dict[str, int] = json.loads(line)
        return answer
