"""The list of seeded faults fits the sources and the tests of today."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tools.mutations import plan
from tools.mutations.__main__ import ROOT, seeded

MUTATIONS = plan.read(plan.LIST.read_text())
ONE = plan.Mutation("a limit is one too high", "n < most", "n <= most", ("test_limits.py",))


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    return plan.sources(ROOT)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_fault_has_its_place_in_the_sources_and_its_tests(
    mutation: plan.Mutation, texts: dict[Path, str]
) -> None:
    path = plan.place(mutation, texts)
    assert plan.tests_of(mutation, ROOT)
    if path.suffix == ".py":  # else its tests would fail for it before they run
        compile(texts[path].replace(mutation.old, mutation.new), path, "exec")


@pytest.mark.parametrize("text", ["", "n < most and n < most"])
def test_a_fault_whose_place_is_not_certain_is_refused(text: str) -> None:
    with pytest.raises(plan.PlanError, match="a limit is one too high: `old` has to be there once"):
        plan.place(ONE, {Path("a.py"): text, Path("b.py"): ""})


def test_tests_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(plan.PlanError, match=r"test_limits\.py has to be there once"):
        plan.tests_of(ONE, tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [({"new": "n < most"}, "changes nothing"), ({"tests": []}, "has no tests"), ({}, "the same name")],
)
def test_a_list_that_could_find_nothing_is_refused(change: dict[str, object], why: str) -> None:
    entry = {"name": "a", "old": "n < most", "new": "n <= most", "tests": ["test_limits.py"]}
    lines = "\n".join(f"{key} = {value!r}" for key, value in (entry | change).items())
    with pytest.raises(plan.PlanError, match=why):
        plan.read(f"[[mutation]]\n{lines}\n" * 2)


def test_a_file_is_as_before_whatever_ends_its_tests(tmp_path: Path) -> None:
    path = tmp_path / "limits.py"
    path.write_text("return n < most\n")
    before = path.stat()
    with contextlib.suppress(KeyboardInterrupt), seeded(ONE, path):
        assert path.read_text() == "return n <= most\n"
        raise KeyboardInterrupt
    assert path.read_text() == "return n < most\n"
    assert path.stat().st_mtime_ns == before.st_mtime_ns
