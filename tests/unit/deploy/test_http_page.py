"""Each entry of docs/http.md's lists is held by tests."""

from __future__ import annotations

import re

from harness.deploy import ROOT

_ENTRY = re.compile(r"^- .+(?:\n  [^-].*)*\n  - test: `(test_\w+)`$", re.MULTILINE)
_CASE = re.compile(
    r"^- .+\n  - Python, `openai`: `(test_\w+)`\n  - npm, `openai`: `(test_npm_\w+)`$", re.MULTILINE
)
_TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


def test_each_entry_of_what_is_served_names_a_test() -> None:
    entries = section("What is served")
    named = _ENTRY.findall(entries)
    assert len(named) == entries.count("\n- ") > 10
    assert set(named) <= set(names_of_tests("tests", "test_*.py"))


def test_each_case_of_clients_names_a_test_of_each_client() -> None:
    cases = section("Clients")
    named = _CASE.findall(cases)
    assert len(named) == cases.count("\n- ") >= 9
    assert {python for python, _ in named} <= set(names_of_tests("tests", "test_*.py"))
    assert {npm for _, npm in named} == set(names_of_tests("tests/e2e", "test_openai_npm.py"))


def section(heading: str) -> str:
    """The first list below a heading."""
    text = (ROOT / "docs/http.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return text[text.index("\n- ") :].split("\n\n")[0]


def names_of_tests(folder: str, pattern: str) -> list[str]:
    return [name for path in (ROOT / folder).rglob(pattern) for name in _TEST.findall(path.read_text())]
