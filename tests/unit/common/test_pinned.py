"""Modules that stand on private names of packages: each is called `pinned_*`, and has a row here.

For a new version of one of these packages, read what its module says, look whether the issue is closed, and
run the tests that are named.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.deploy import ROOT

FOLDERS = ("services", "libs", "cli")


@dataclass(frozen=True)
class Pinned:
    """A module that stands on private names of a package.

    Attributes:
        issue: of the package's own project that is nearest to the reason.
        tests: files that fail when the names or what they do change.
    """

    package: str
    version: str
    reason: str
    issue: str
    tests: tuple[str, ...]


PINNED = {
    "pinned_grpc": Pinned(
        "grpcio",
        "1.85.1",
        "one call to a method that is not UTF-8 ends the server; a busy process takes calls too slowly",
        "https://github.com/grpc/grpc/pull/20805",
        ("tests/integration/common/test_grpc_strangers.py", "tests/integration/common/test_grpc_server.py"),
    ),
    "pinned_nats": Pinned(
        "nats-py",
        "2.16.0",
        "a late PONG or a bad header ends the read loop and leaves a connection that is deaf",
        "https://github.com/nats-io/nats.py/issues/624",
        ("tests/integration/common/test_bus.py", "tests/integration/common/test_bus_restart.py"),
    ),
    "pinned_uvicorn": Pinned(
        "uvicorn",
        "0.54.0",
        "no bounds on heads, on the time for one, or on connections that wait for one",
        "https://github.com/Kludex/uvicorn/issues/157",
        ("tests/integration/gateway/test_http_connections.py",),
    ),
    "pinned_uvicorn_websocket": Pinned(
        "uvicorn",
        "0.54.0",
        "no bounds on what waits for a client that does not read",
        "https://github.com/Kludex/uvicorn/issues/157",
        ("tests/integration/gateway/test_http_connections.py",),
    ),
    "pinned_state": Pinned(
        "llama-cpp-python",
        "0.3.36",
        "the state of a sequence without flash attention cannot be read with it, and none of it alone",
        "https://github.com/ggml-org/llama.cpp/pull/5021",
        ("tests/unit/worker/test_state.py", "tests/integration/worker/test_self_checks.py"),
    ),
    "pinned_load_log": Pinned(
        "llama-cpp-python",
        "0.3.36",
        "no call says on which device a layer is, nor how large the buffers there are",
        "https://github.com/ggml-org/llama.cpp/pull/14358",
        ("tests/unit/worker/test_load_log.py", "tests/integration/worker/test_devices.py"),
    ),
}


def _sources() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "/v1/" not in str(path)]
    assert len(found) > 300
    return found


def test_every_pinned_module_has_a_row_and_every_row_a_module() -> None:
    assert {path.stem for path in _sources() if path.stem.startswith("pinned_")} == PINNED.keys()


@pytest.mark.parametrize("name", PINNED)
def test_the_version_is_the_one_that_is_installed(name: str) -> None:
    pinned = PINNED[name]
    wanted = re.compile(rf"^{re.escape(pinned.package)}==(\S+)", re.MULTILINE)
    versions = {v for file in (ROOT / "requirements").glob("*.txt") for v in wanted.findall(file.read_text())}
    assert versions == {pinned.version}
    assert all((ROOT / file).is_file() for file in pinned.tests)


def _private_imports(path: Path) -> list[str]:
    """Names of others that begin with an underscore, but for types."""
    found = []
    tree = ast.parse(path.read_text())
    typed = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module or id(node) in typed:
            continue
        if node.module.startswith(("inferflux", "__future__")):
            continue
        names = [*node.module.split("."), *(alias.name for alias in node.names)]
        found += [f"{node.module} {name}" for name in names if name.startswith("_")]
    return found


def test_private_names_of_packages_are_imported_by_pinned_modules_alone() -> None:
    found = {path.stem: names for path in _sources() if (names := _private_imports(path))}
    assert {name for name in found if not name.startswith("pinned_")} <= {"servers"}, found
    assert "pinned_grpc" in found
