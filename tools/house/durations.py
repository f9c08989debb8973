"""The table of what files of tests take (pure)."""

from __future__ import annotations

from tools.reference.markdown import table

# Files that take less are one row for each level.
_LEAST_S = 10.0


def as_table(recorded: str) -> str:
    """A Markdown table, the slowest first.

    Args:
        recorded: lines of seconds, a tab, and a file, as `pytest --durations-by-file` writes them; the first
            is of the whole run.
    """
    lines = [
        (float(seconds), file) for seconds, _, file in (x.partition("\t") for x in recorded.splitlines())
    ]
    (wall, name), *files = lines
    slow = sorted((entry for entry in files if entry[0] >= _LEAST_S), reverse=True)
    rest: dict[str, list[float]] = {}
    for seconds, file in files:
        if seconds < _LEAST_S:
            rest.setdefault("/".join(file.split("/")[:2]), []).append(seconds)
    rows = [(f"`{file}`", f"{seconds:.0f}") for seconds, file in slow]
    rows += [
        (f"faster files of `{level}/`: {len(times)}", f"{sum(times):.0f}") for level, times in rest.items()
    ]
    return table(("file", "s"), [(name, f"{wall:.0f}"), *rows])
