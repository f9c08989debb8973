"""A finding of `inferctl doctor`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Level(StrEnum):
    """How bad a finding is; a check that cannot be made is `unknown`."""

    OK = "ok"
    UNKNOWN = "not checked"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the table.

    Attributes:
        check: `ports`, `nats` and so on.
        said: what holds, without passwords.
        remedy: what to do; empty where there is nothing to do.
    """

    level: Level
    check: str
    said: str
    remedy: str = ""


ok = partial(Finding, Level.OK)
unknown = partial(Finding, Level.UNKNOWN)
warning = partial(Finding, Level.WARNING)
problem = partial(Finding, Level.PROBLEM)
