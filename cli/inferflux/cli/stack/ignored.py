"""Environment variables that services ignored since they do not know them, as their logs tell (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from inferflux.common.process.lifecycle import IGNORES_VARIABLE

# In either format of the log: `variable=NAME`, or `"variable": "NAME"`.
_VARIABLE = re.compile(r"\bvariable\W+(INFERFLUX_\w+)")
_NEAREST = re.compile(r"\bnearest\W+(INFERFLUX_\w+)")


def ignored_variables(lines: Iterable[str]) -> dict[str, str]:
    """The variables, each with the one that it was likely meant to be."""
    found: dict[str, str] = {}
    for line in lines:
        if IGNORES_VARIABLE not in line:
            continue
        variable, nearest = _VARIABLE.search(line), _NEAREST.search(line)
        if variable and nearest:
            found[variable[1]] = nearest[1]
    return found
