"""Rules of the tree that nothing else would notice being broken."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools.house import plan, rules, source
from tools.house.source import GENERATED, ROOT, Module
from tools.reference.__main__ import CONTRIBUTING_PAGE, written_contributing

SUBJECTS = "libs/common/inferflux/common/contract/subjects.py"
# Those that clients read.
TOKEN_SUBJECTS = "libs/api/inferflux/api/token_subjects.py"
SERVICES = sorted(path.name for path in (ROOT / "services").iterdir() if path.is_dir())
MAY_IMPORT = plan.may_import()


@cache
def modules() -> list[Module]:
    return source.read()


@pytest.fixture(scope="module", autouse=True)
def freed() -> Iterator[None]:
    """The trees take 150 MB: not beyond the tests of this file."""
    yield
    modules.cache_clear()


@cache
def violations() -> dict[str, list[str]]:
    return rules.violations(modules(), MAY_IMPORT, plan.projects())


def sources(*folders: str) -> list[Module]:
    return [
        module for module in modules() if module.path.startswith(tuple(f"{folder}/" for folder in folders))
    ]


def test_the_sources_are_found() -> None:
    assert SUBJECTS in [module.path for module in sources("libs")]
    assert {"gateway", "policy", "scheduler", "worker"} <= set(SERVICES)
    projects = [
        path
        for where in ("libs/*", "services/*", "convert", "cli")
        for path in ROOT.glob(f"{where}/pyproject.toml")
    ]
    assert {path.parent.relative_to(ROOT).as_posix() for path in projects} == set(source.DISTRIBUTIONS)


@pytest.mark.parametrize("rule", plan.known_violations())
def test_a_rule_of_the_house_is_broken_where_it_was_and_nowhere_else(rule: str) -> None:
    """Lists of what breaks it only shrink: what is mended leaves the list, what is new is mended."""
    broken, known = violations(), plan.known_violations()
    assert list(known) == list(broken)
    new, mended = set(broken[rule]) - set(known[rule]), set(known[rule]) - set(broken[rule])
    assert not new, f"{rule}: new in the tree: {sorted(new)}"
    assert not mended, f"{rule}: run `python -m tools.house --violations`, these are mended: {sorted(mended)}"


def test_a_room_may_import_rooms_below_it_alone() -> None:
    assert rules.out_of_order(MAY_IMPORT) == []


def test_the_page_for_contributors_prints_the_rooms() -> None:
    page = CONTRIBUTING_PAGE.read_text()
    assert page == written_contributing(page), "run `make docs`"


def subjects_spelled_in(module: Module) -> list[str]:
    """String constants that look like a NATS subject of ours; docstrings and proto package names aside."""
    docstrings = {
        id(node.body[0].value)
        for node in module.nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in module.nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
        and _is_subject(node.value)
    ]


def _is_subject(text: str) -> bool:
    """`inferflux.v1.` and a lower-case token or a wildcard: services are `inferflux.v1.ModelService`."""
    _before, found, after = text.partition("inferflux.v1.")
    if not found:
        return False
    token = after.partition(".")[0]
    return not token[:1].isupper() and not token.endswith("_pb2") and not token.endswith("_pb2_grpc")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("inferflux.v1.tokens.a.b", True),
        ("inferflux.v1.", True),
        ("inferflux.v1.*.x", True),
        ("inferflux.v1.ModelService", False),
        ("/inferflux.v1.ModelService/ListModels", False),
        ("inferflux.v1", False),
    ],
)
def test_subjects_are_told_from_services(text: str, expected: bool) -> None:
    assert _is_subject(text) is expected


def test_only_subjects_py_spells_a_subject() -> None:
    spelled = {
        module.path: found
        for module in modules()
        if module.path not in (SUBJECTS, TOKEN_SUBJECTS) and (found := subjects_spelled_in(module))
    }
    assert spelled == {}


def test_the_namespace_stays_open() -> None:
    """An __init__.py directly in an `inferflux` folder would hide the other distributions."""
    closed = [path for path in ROOT.glob("*/**/inferflux/__init__.py") if ".venv" not in path.parts]
    assert closed == []


def test_no_service_imports_another() -> None:
    crossings = []
    for service in SERVICES:
        foreign = {f"inferflux.{other}" for other in [*SERVICES, "cli"] if other != service}
        for module in sources(f"services/{service}"):
            crossings += [
                f"{module.path} imports {name}"
                for name in module.imports
                if any(name == package or name.startswith(f"{package}.") for package in foreign)
            ]
    assert crossings == []


def test_common_imports_no_service() -> None:
    packages = tuple(f"inferflux.{service}." for service in [*SERVICES, "cli"])
    found = [
        f"{module.path} imports {name}"
        for module in sources("libs")
        for name in module.imports
        if f"{name}.".startswith(packages)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("libs/api", {"inferflux.api", "inferflux.v1"}),
        ("libs/client", {"inferflux.api", "inferflux.client", "inferflux.v1"}),
    ],
)
def test_what_clients_install_needs_nothing_else_of_ours(folder: str, allowed: set[str]) -> None:
    found = [
        f"{module.path} imports {name}"
        for module in sources(folder)
        for name in module.imports
        if name.startswith("inferflux.") and ".".join(name.split(".")[:2]) not in allowed
    ]
    assert found == []
    assert sources(folder)


# What waits, sends or looks at a clock.
IMPURE = {"asyncio", "concurrent", "datetime", "grpc", "multiprocessing", "nats", "os", "prometheus_client"}
IMPURE |= {"random", "redis", "secrets", "select", "signal", "socket", "subprocess", "threading", "time"}
IMPURE |= {"inferflux.common.bus", "inferflux.common.redis.store", "inferflux.common.process.logs"}


@pytest.mark.parametrize("core", ["services/scheduler/inferflux/scheduler/core"])
def test_what_decides_does_no_io_and_has_no_clock(core: str) -> None:
    """It imports itself, messages, and what is pure in common."""
    home = core.partition("/inferflux/")[2].replace("/", ".")
    found = []
    for module in sources(core):
        for name in module.imports:
            is_impure = any(name == impure or name.startswith(f"{impure}.") for impure in IMPURE)
            is_outside = name.startswith("inferflux.scheduler.") and not name.startswith(f"inferflux.{home}.")
            if is_impure or is_outside:
                found.append(f"{module.path} imports {name}")
    assert found == []
    names = [module.name for module in sources(core)]
    assert len(names) > 20
    # Nor does anything that it imports.
    loaded = "{'asyncio', 'grpc', 'nats'} & set(sys.modules)"
    code = f"import sys, {', '.join(names)}; assert not {loaded}, {loaded}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_generated_code_is_that_of_the_protos(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [sys.executable, str(ROOT / "tools" / "codegen.py"), "--out", str(tmp_path)],
        check=True,
        env={**os.environ, "PATH": path},
    )
    fresh = {p.name: p.read_text() for p in (tmp_path / "inferflux" / "v1").iterdir() if p.is_file()}
    committed = {
        p.name: p.read_text() for p in (ROOT / GENERATED).iterdir() if p.is_file() and p.name != "py.typed"
    }
    assert sorted(fresh) == sorted(committed), "run tools/codegen.py"
    stale = [name for name in fresh if fresh[name] != committed[name]]
    assert stale == [], "run tools/codegen.py"


def find_buf() -> str | None:
    beside = ROOT / "node_modules" / ".bin" / "buf"
    return os.environ.get("BUF") or shutil.which("buf") or (str(beside) if beside.exists() else None)


@pytest.mark.skipif(find_buf() is None, reason="no buf: set BUF, or npm install @bufbuild/buf")
def test_the_protos_pass_buf_lint() -> None:
    buf = find_buf()
    assert buf is not None
    result = subprocess.run([buf, "lint"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "module",
    [
        "contract.errors",
        "process.settings",
        "bus",
        "redis.store",
        "process.logs",
        "process.lifecycle",
        "process.probe",
    ],
)
def test_a_service_without_grpc_does_not_pay_for_it(module: str) -> None:
    code = f"import sys, inferflux.common.{module}; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_gateways_pipeline_knows_no_grpc() -> None:
    """Another front, of another protocol, uses it as it is."""
    code = "import sys, inferflux.gateway.request.pipeline; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
