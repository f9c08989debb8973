"""Messages, metrics and settings are named in the field's words, which our own once were not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness.deploy import ROOT

_OWN_WORD = re.compile(
    r"aboard|apart|awaited|board|conclude|conclusion|excuse|flight|hearing|heard|insist|loss|orphan|rank|"
    r"roster|seat|stray|stretch|turn",
    re.IGNORECASE,
)
# In Python: names, comments and texts.
_OWN_IN_PYTHON = re.compile(
    r"(?<![a-z])(hears?|heard|overheard|somebody|everybody|nobody|whoever|let[ _]in|pass(es|ed|ing)[ _]over|"
    r"so[ _](many|long)|as it were|aboard|on[ _]board|(?<!--remove-)orphans?)(?![a-z])",
    re.IGNORECASE,
)
_CHECKS_OF_WORDS = {"test_pages.py", "test_words.py"}
_PYTHON = [
    path
    for folder in ("libs", "services", "convert", "cli", "examples", "benchmarks", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.stem.endswith(("_pb2", "_pb2_grpc")) and path.name not in _CHECKS_OF_WORDS
]
_COMMENT = re.compile(r"//.*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_PUBLIC = re.compile(r"`((?:inferflux|INFERFLUX)_\w+)`")
_PROTOS = sorted((ROOT / "protos").rglob("*.proto"))


def own_words(names: list[str]) -> set[str]:
    return {name for name in names if any(_OWN_WORD.fullmatch(part) for part in _PART.findall(name))}


@pytest.mark.parametrize("path", _PROTOS, ids=lambda path: path.stem)
def test_a_message_names_its_fields_in_the_fields_words(path: Path) -> None:
    names = _NAME.findall(_COMMENT.sub("", path.read_text()))
    assert names
    assert own_words(names) == set()


def test_metrics_and_variables_are_named_in_the_fields_words() -> None:
    names = _PUBLIC.findall((ROOT / "docs/operations.md").read_text())
    assert names
    assert own_words(names) == set()


def test_python_is_written_in_the_fields_words() -> None:
    assert len(_PYTHON) > 100
    found = {
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _PYTHON
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _OWN_IN_PYTHON.search(line)
    }
    assert found == set()
