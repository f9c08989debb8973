"""Errors of a stack that does not come up."""

from __future__ import annotations

from collections.abc import Iterable

from inferflux.cli.reach.errors import CommandError
from inferflux.common.process.child.children import describe_end

from .process import ManagedProcess

_TAIL_LINES = 12


class StartError(CommandError):
    """A stack did not come up. `log_tail` is the end of the log of the process that is to blame."""

    def __init__(self, message: str, log_tail: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.log_tail = list(log_tail)


def not_ready(process: ManagedProcess, limit_s: float, why: str) -> StartError:
    """Error for a process that was not ready in time."""
    message = f"{process.name} was not ready within {limit_s:g} s: {why or 'it does not answer'}"
    return StartError(message, process.last_lines(_TAIL_LINES))


def did_not_start(process: ManagedProcess, code: int) -> StartError:
    """Its own words where it ended with some, else the end of its log."""
    tail = process.last_lines(_TAIL_LINES)
    if tail and tail[-1].startswith(f"{process.spec.kind}: "):
        return StartError(f"{process.name} could not start: {tail[-1].partition(': ')[2]}")
    return StartError(f"{process.name} {describe_end(code)} while starting", tail)
