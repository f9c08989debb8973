"""README and docs/ name only what is there: links, files, variables, targets of make."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness.deploy import COMPOSE_FILES, ROOT

from inferflux.common.process.gone_settings import GONE
from tools.reference.__main__ import PAGE as OPERATIONS

PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "models/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"\b((?:INFERFLUX|OTEL)_[A-Z_]*[A-Z])\b")
# `gateway/request/queue.py` stands for services/gateway/inferflux/gateway/request/queue.py; so does
# `engine/x.py` for one of the worker.
_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]*\.(?:py|proto|yml|toml|sh|gguf|md|json))`")
_BENCHMARK = re.compile(r"(?<![\w/])benchmarks[./](?!results)([a-z_]\w*(?:\.(?!py\b)[a-z_]\w*)*)")
_COMMIT = re.compile(r"\bat\s+[0-9a-f]{7,10}\b|90b377b3")
_FOLDERS = [
    ROOT,
    *(ROOT / "services" / name / "inferflux" for name in ("gateway", "policy", "scheduler", "worker")),
    ROOT / "services/worker/inferflux/worker",
    ROOT / "libs/api/inferflux",
    ROOT / "libs/client/inferflux",
    ROOT / "libs/common/inferflux",
    ROOT / "cli/inferflux",
]
_MADE_LATER = {"benchmarks/results/latest.json", "benchmarks/results/scheduling.json"}


# Words that a reader would need a dictionary for, or that leave the subject of a sentence out.
_OWN_WORDS = re.compile(
    r"\b(on board|aboard|whoever|nobody|somebody|everybody|strays?|orphans?|insists?|roster|text process|"
    r"gets no further|emitted|complaints?|excuses?|seated|(its|each|last) turns?)\b",
    re.IGNORECASE,
)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    texts = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings(page))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def headings(page: Path) -> list[str]:
    return _HEADING.findall(_BLOCK.sub("", page.read_text()))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_link_leads_to_a_file_and_its_heading(page: Path) -> None:
    for link in _LINK.findall(_BLOCK.sub("", page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_heading_is_there_once(page: Path) -> None:
    assert len(set(headings(page))) == len(headings(page))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_file_that_is_named_is_there(page: Path) -> None:
    named = set(_FILE.findall(page.read_text())) - _MADE_LATER
    missing = {path for path in named if not any((folder / path).exists() for folder in _FOLDERS)}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_benchmark_that_is_named_is_there_or_a_commit_that_has_it_is_beside_it(page: Path) -> None:
    text = page.read_text()
    for found in _BENCHMARK.finditer(text):
        place = ROOT / "benchmarks" / found[1].replace(".", "/")
        if not place.exists() and not place.with_suffix(".py").exists():
            around = text[max(0, found.start() - 300) : found.end() + 300]
            assert _COMMIT.search(around), found[0]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_variable_that_is_named_is_in_the_manual(page: Path) -> None:
    known = set(_VARIABLE.findall("".join(re.findall(r"^- `.*$", OPERATIONS.read_text(), re.MULTILINE))))
    others = {"INFERFLUX_JOBS", "INFERFLUX_TOKENS", "INFERFLUX_CONTAINERS_DIR"}
    others |= {v for path in COMPOSE_FILES for v in _VARIABLE.findall(path.read_text())}
    others |= set(GONE) if page.name == "CHANGELOG.md" else set()
    named = {v for v in _VARIABLE.findall(page.read_text()) if v.startswith("INFERFLUX_")}
    assert named <= known | others | {f"{variable}_FILE" for variable in known}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_target_that_is_named_is_in_the_makefile(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^(?: {4})?|`)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE))
    assert named <= targets


def test_the_map_has_a_row_for_each_room_and_a_file_that_is_in_it() -> None:
    rows = re.findall(
        r"^\| (`.+/`) \| .+ \| `(\w+\.py)` \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE
    )
    on_map = {folder for folders, _ in rows for folder in re.findall(r"`(.+?)/`", folders)}
    trees = [
        path for name in ("services/*", "libs/*", "convert", "cli") for path in ROOT.glob(f"{name}/inferflux")
    ]
    rooms = {
        str(path.parent.relative_to(tree))
        for tree in trees
        for path in tree.rglob("*.py")
        if path.name != "__init__.py"
    }
    assert on_map == rooms
    for folders, file in rows:
        first = folders.split("`")[1]
        assert any((tree / first / file).exists() for tree in trees), folders


def test_the_version_is_in_one_place_and_the_changelog_begins_with_it() -> None:
    projects = [
        path.read_text()
        for where in ("libs/*", "services/*", "convert", "cli")
        for path in ROOT.glob(f"{where}/pyproject.toml")
    ]
    assert len(projects) == 9
    assert all(re.search(r'^path = "(\.\./)+VERSION"$', project, re.MULTILINE) for project in projects)
    headings = re.findall(r"^## \[(.+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == (ROOT / "VERSION").read_text().strip()


def test_every_decision_is_in_the_list() -> None:
    folder = ROOT / "docs/decisions"
    listed = set(_LINK.findall((folder / "README.md").read_text()))
    assert {path.name for path in folder.glob("*.md")} - {"README.md"} <= listed


@pytest.mark.parametrize("page", sorted((ROOT / "docs/decisions").glob("*.md")), ids=name_of)
def test_a_decision_has_question_figures_and_decision(page: Path) -> None:
    text = page.read_text()
    assert page.name == "README.md" or all(
        f"**{part}" in text for part in ("Question.", "Tried", "Decision.")
    )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_uses_the_words_of_the_field(page: Path) -> None:
    assert [found[0] for found in _OWN_WORDS.findall(page.read_text())] == []
