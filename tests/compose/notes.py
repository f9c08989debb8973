"""What a run saw, for its summary."""

from __future__ import annotations


class Notes:
    """Lines of figures, shown at once and again at the end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        self.lines.append(line)
        print(f"\n    {line}", flush=True)
