"""Each line of docs/http.md's tables is held by tests."""

from __future__ import annotations

import re

from harness.deploy import ROOT

_ROW = re.compile(r"\| .+ \| .+ \| `(test_\w+)` \|")
_CASE = re.compile(r"\| .+ \| `(test_\w+)` \| `(test_npm_\w+)` \|")
_TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


def test_each_line_of_what_is_served_names_a_test() -> None:
    rows = table("What is served")
    named = [found[1] for row in rows if (found := _ROW.fullmatch(row))]
    assert len(named) == len(rows) > 10
    assert set(named) <= set(names_of_tests("tests", "test_*.py"))


def test_each_case_of_clients_names_a_test_of_each_client() -> None:
    rows = table("Clients")
    named = [found.groups() for row in rows if (found := _CASE.fullmatch(row))]
    assert len(named) == len(rows) >= 9
    assert {python for python, _ in named} <= set(names_of_tests("tests", "test_*.py"))
    assert {npm for _, npm in named} == set(names_of_tests("tests/e2e", "test_openai_npm.py"))


def table(heading: str) -> list[str]:
    """The rows of the first table below a heading."""
    section = (ROOT / "docs/http.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def names_of_tests(folder: str, pattern: str) -> list[str]:
    return [name for path in (ROOT / folder).rglob(pattern) for name in _TEST.findall(path.read_text())]
