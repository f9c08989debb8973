"""The order in which files of tests run side by side."""

from __future__ import annotations

from pathlib import Path

from harness.order import interleaved, level_of


def test_long_levels_are_spread_and_the_rest_comes_last() -> None:
    files = ["e2e/a", "e2e/b", "integration/a", "integration/b", "integration/c", "integration/d", "unit/a"]
    items = [(name, number) for name in files for number in range(2)]
    ordered = interleaved(items, lambda item: (item[0].partition("/")[0], Path(item[0])))
    assert sorted(ordered) == sorted(items)
    assert ordered[::2] == [
        ("integration/a", 0),
        ("e2e/a", 0),
        ("integration/b", 0),
        ("integration/c", 0),
        ("e2e/b", 0),
        ("integration/d", 0),
        ("unit/a", 0),
    ]
    assert [number for _, number in ordered] == [0, 1] * len(files), "items of a file stay together"


def test_the_level_of_a_file_is_its_folder() -> None:
    assert level_of(Path("/x/tests/e2e/test_a.py")) == "e2e"
    assert level_of(Path("/x/tests/unit/worker/test_a.py")) == "unit"
    assert level_of(Path("/x/elsewhere.py")) == ""
