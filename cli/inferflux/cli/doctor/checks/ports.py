"""Ports that are free, or have what should have them."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

from inferflux.cli.doctor.finding import Finding, ok, problem, warning
from inferflux.cli.doctor.seen import Port


def decide(ports: Iterable[Port], *, is_running: bool = False) -> Iterator[Finding]:
    """Findings about each port.

    Args:
        is_running: whether a stack says that it has them.
    """
    for port in ports:
        where = f"{port.use}: {port.address}"
        if port.bind_errno == errno.EADDRINUSE:
            yield _taken(port, where)
        elif port.bind_errno == errno.EADDRNOTAVAIL:
            said = f"{where} is no address of this machine"
            yield problem("ports", said, f"{port.variable}: name one of `ip address`, or 0.0.0.0")
        elif port.bind_errno:
            remedy = f"{port.variable}: a port above 1023, or CAP_NET_BIND_SERVICE for the service"
            yield problem("ports", f"{where} may not be bound by this user", remedy)
        elif is_running:
            remedy = (
                "the stack is ending, or this process of it has ended: see its log, `inferctl up --verbose`"
            )
            yield problem("ports", f"{where} has no listener, and a stack runs", remedy)
        else:
            yield ok("ports", f"{where} is free")


def _taken(port: Port, where: str) -> Finding:
    if port.pid is None:
        said = f"{where} is taken by a process that this user cannot see"
        remedy = f"if it is not InferFlux's own: `ss -ltnp` as root names it; else change {port.variable}"
        return warning("ports", said, remedy)
    if port.is_owned:
        return ok("ports", f"{where} is {port.command or port.use}'s (pid {port.pid})")
    said = f"{where} is taken by {port.command or 'another process'} (pid {port.pid})"
    return problem("ports", said, f"end that process, or choose another port with {port.variable}")
