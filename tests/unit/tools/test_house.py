"""The rules and measures of the source tree, on trees whose faults are known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.house import graph, measures, plan, rules, source
from tools.house.durations import as_table
from tools.house.source import Module, parsed

SERVICE = "services/worker/inferflux/worker"
PROJECTS: rules.Projects = {
    "libs/common": {"name": "inferflux-common", "dependencies": ["grpcio>=1", "redis[hiredis]"]},
    "services/worker": {
        "name": "inferflux-worker",
        "dependencies": ["inferflux-common"],
        "optional-dependencies": {"images": ["pillow"]},
    },
}


def tree(**texts: str) -> list[Module]:
    """Modules of a worker: `engine__step` is `engine/step.py`, and every folder has an `__init__.py`."""
    paths = {f"{SERVICE}/{name.replace('__', '/')}.py": text for name, text in texts.items()}
    paths |= {f"{path.rpartition('/')[0]}/__init__.py": '"""Does it."""' for path in paths}
    paths[f"{SERVICE}/__init__.py"] = '"""Works."""'
    return [parsed(path, text) for path, text in sorted(paths.items())]


def broken(modules: list[Module], may_import: dict[str, list[str]] | None = None) -> dict[str, list[str]]:
    """The rules that something breaks. Without ``may_import``, no room may import another."""
    allowed = {room: [] for room in rules.folders(modules)} if may_import is None else may_import
    return {rule: found for rule, found in rules.violations(modules, allowed, PROJECTS).items() if found}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import json, os.path", ["json", "os.path"]),
        ("from inferflux.common import bus", ["inferflux.common.bus"]),
        ("from . import step", ["inferflux.worker.engine.step"]),
        ("from ..host import Host", ["inferflux.worker.host.Host"]),
        ("if TYPE_CHECKING:\n    import grpc", ["grpc"]),
        ("def late() -> None:\n    import grpc", ["grpc"]),
        ("lib = importlib.import_module('llama_cpp.mtmd_cpp')", ["llama_cpp.mtmd_cpp"]),
    ],
)
def test_an_import_is_seen_wherever_it_stands(text: str, names: list[str]) -> None:
    assert parsed(f"{SERVICE}/engine/core.py", text).imports == names


def test_a_package_imports_from_its_own_folder() -> None:
    module = parsed(f"{SERVICE}/engine/__init__.py", "from .core import Engine")
    assert (module.name, module.imports) == (
        "inferflux.worker.engine",
        ["inferflux.worker.engine.core.Engine"],
    )


def test_an_arrow_that_no_row_allows_is_named_with_its_importer() -> None:
    modules = tree(
        host="from inferflux.worker.engine import core", engine__core="from ..ids import Id", ids=""
    )
    assert broken(modules, {"worker": ["worker.engine"], "worker.engine": []}) == {
        "arrow": ["worker.engine.core -> worker"]
    }


def test_a_module_with_a_row_of_its_own_is_a_room() -> None:
    modules = tree(host="from .engine import core", engine__core="from ..ids import Id", ids="")
    rows = {"worker": ["worker.engine"], "worker.engine": ["worker.ids"], "worker.ids": []}
    assert broken(modules, rows) == {}


def test_a_folder_without_a_row_and_a_row_without_a_folder_are_found() -> None:
    rows: dict[str, list[str]] = {"worker": [], "worker.ids": []}
    assert broken(tree(engine__core=""), rows) == {"no room": ["worker.engine", "worker.ids"]}


def test_rows_that_form_a_circle_or_name_no_room_are_found() -> None:
    assert rules.out_of_order({"a": ["b"], "b": ["a"], "c": ["c", "x"]}) == ["b -> a", "c -> c", "c -> x"]


@pytest.mark.parametrize(
    ("modules", "rule", "entry"),
    [
        (tree(**{f"m{i}": "" for i in range(21)}), "wide folder", "worker"),
        ([parsed(f"{SERVICE}/engine/core.py", "")], "no purpose", "worker.engine"),
        ([parsed(f"{SERVICE}/__init__.py", "import os")], "no purpose", "worker"),
        (tree(host="\n" * 451), "long file", f"{SERVICE}/host.py"),
        (tree(host="class Host:\n" + "    x: int\n" * 400), "long class", f"{SERVICE}/host.py: Host"),
        (tree(host="import os\n" * 31), "many imports", f"{SERVICE}/host.py"),
        (tree(app="import os\n" * 41), "many imports", f"{SERVICE}/app.py"),
        (tree(host="import jwt"), "undeclared", "services/worker: pyjwt"),
    ],
)
def test_what_is_beyond_a_limit_is_found(modules: list[Module], rule: str, entry: str) -> None:
    assert broken(modules) == {rule: [entry]}


def test_what_is_within_its_limit_breaks_no_rule() -> None:
    texts = {f"m{i}": "" for i in range(17)}
    texts["host"] = "class Host:\n" + "    x: int\n" * 399 + "from __future__ import annotations\n"
    texts["app"] = "import os\n" * 40
    declared = "import grpc, redis, PIL.Image, inferflux.common.bus, inferflux.worker.app"
    assert broken(tree(**texts, sums=declared)) == {}


def test_a_draft_allows_all_but_what_points_up() -> None:
    modules = tree(
        host="from .engine import core, step", engine__core="from ..host import Host", engine__step=""
    )
    rows = rules.drafted(modules)
    assert rows == {"worker.host": ["worker.engine"], "worker.engine": [], "worker": []}
    assert broken(modules, rows) == {"arrow": ["worker.engine.core -> worker.host"]}


def test_modules_of_a_wide_folder_are_drafted_as_one_room() -> None:
    texts = {f"m{i}": "from .engine import core" for i in range(21)}
    assert rules.drafted(tree(**texts, engine__core="")) == {"worker": ["worker.engine"], "worker.engine": []}


def test_rooms_without_a_circle_stand_above_all_that_they_import() -> None:
    arrows = {("a", "c"): 1, ("c", "b"): 9, ("a", "b"): 1, ("d", "a"): 1}
    order = graph.ordered(arrows)
    assert order == ["d", "a", "c", "b"]
    assert (graph.pointing_up(arrows, order), graph.circles(arrows)) == (set(), [])


def test_the_arrow_with_the_fewest_imports_of_a_circle_points_up() -> None:
    arrows = {("a", "b"): 5, ("b", "c"): 5, ("c", "a"): 1, ("c", "d"): 1}
    assert graph.pointing_up(arrows, graph.ordered(arrows)) == {("c", "a")}
    assert graph.circles(arrows) == [{"a", "b", "c"}]
    arrows = {("a", "b"): 3, ("b", "c"): 1, ("c", "a"): 2}
    assert graph.pointing_up(arrows, graph.ordered(arrows)) == {("b", "c")}


def test_a_look_counts_modules_and_folders_of_a_package_that_have_an_arrow() -> None:
    texts = {
        "host": "from .engine.core import x",
        "lone": "",
        "engine__core": "from . import step",
        "engine__step": "",
    }
    assert measures.look(tree(**texts), "worker") == (2, 1, 0, 0)
    assert measures.look(tree(**texts), "worker", opened="worker.engine") == (3, 2, 0, 0)


def test_openings_are_a_share_of_all_docstrings() -> None:
    text = (
        '"""What it is."""\ndef f() -> None:\n    """Whatever."""\nclass A:\n    """Those."""\n    x = "Of"\n'
    )
    assert measures.openings([parsed("a.py", text)]) == pytest.approx(200 / 3)


def test_the_plan_is_read_as_it_is_written(tmp_path: Path) -> None:
    rows = {"worker": [f"worker.room{i}" for i in range(20)], "worker.engine": []}
    file = tmp_path / plan.PLAN
    file.parent.mkdir(parents=True)
    file.write_text(plan.written(rows, tree(engine__core="import jwt"), PROJECTS))
    assert plan.may_import(tmp_path) == rows
    assert plan.known_violations(tmp_path)["undeclared"] == ["services/worker: pyjwt"]
    assert max(map(len, file.read_text().splitlines())) <= 110


def test_short_files_of_a_level_are_one_row() -> None:
    times = {"the whole run": 60.1, "tests/e2e/test_a.py": 40.2, "tests/unit/x/b.py": 2, "tests/unit/c.py": 3}
    recorded = "".join(f"{seconds}\t{name}\n" for name, seconds in times.items())
    assert as_table(recorded).splitlines()[2:] == [
        "| the whole run | 60 |",
        "| `tests/e2e/test_a.py` | 40 |",
        "| faster files of `tests/unit/`: 2 | 5 |",
    ]


@pytest.mark.long
def test_a_run_writes_what_its_files_take_and_prints_the_house_before_its_last_line(tmp_path: Path) -> None:
    file = tmp_path / "new" / "durations.tsv"
    options = ["-q", "--house", f"--durations-by-file={file}", "-p", "no:cacheprovider", "-n", "1"]
    test = "tests/unit/tools/test_order.py"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, test],
        cwd=source.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    whole, one = (line.split("\t") for line in file.read_text().splitlines())
    assert (whole[1], one[1]) == ("the whole run", test)
    assert 0 <= float(one[0]) <= float(whole[0])
    lines = sum(source.line_count(source.ROOT / folder) for folder in source.DISTRIBUTIONS)
    lines -= sum(source.line_count(source.ROOT / folder) for folder in (source.GENERATED, "convert"))
    printed = run.stdout.splitlines()
    (row,) = (line for line in printed if line.startswith("source lines of services, libs, cli"))
    assert f" {lines:,} " in row
    assert "passed" in printed[-1]
