"""Each line of docs/http.md's table is held by a test."""

from __future__ import annotations

import re

from harness.deploy import ROOT

_ROW = re.compile(r"^\| .+ \| .+ \| `(test_\w+)` \|$", re.MULTILINE)
_TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


def test_each_line_of_what_is_served_names_a_test() -> None:
    text = (ROOT / "docs/http.md").read_text()
    table = text.split("## What is served\n")[1].strip().split("\n\n")[0]
    rows = table.splitlines()[2:]
    named = _ROW.findall(table)
    assert len(named) == len(rows) > 10
    tests = {name for path in (ROOT / "tests").rglob("test_*.py") for name in _TEST.findall(path.read_text())}
    assert set(named) <= tests
