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
