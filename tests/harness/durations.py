"""Durations of files of tests."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest


class DurationsByFile:
    """Writes lines of seconds, a tab, and a file of tests, fixtures included; first the whole run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._began = time.monotonic()
        self._milliseconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._milliseconds[report.nodeid.partition("::")[0]] += round(report.duration * 1000)

    def pytest_sessionfinish(self) -> None:
        whole = time.monotonic() - self._began
        lines = [f"{taken / 1000:.2f}\t{file}" for file, taken in self._milliseconds.most_common()]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("\n".join([f"{whole:.2f}\tthe whole run", *lines, ""]))
