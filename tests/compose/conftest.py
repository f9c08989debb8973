"""The stack of docker-compose.yml on a real container engine: `make compose-test` runs this folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from chaos import caller
from harness.client import Client
from harness.deploy import ROOT

from compose.engine import Compose
from compose.load import Answers, undisturbed
from compose.notes import Notes
from inferflux.cli.stack.servers import free_port

# tools/containers/run.sh says that an engine is there. Without it there is nothing to collect.
IS_ENGINE_READY = "INFERFLUX_CONTAINERS_READY" in os.environ
collect_ignore_glob = [] if IS_ENGINE_READY else ["test_*.py"]
PROJECT = "inferflux-test"
_SLOTS = "4"
# A power cut of everything keeps a request from its end for longer than a chaos run's faults.
_PATIENCE_S = 240.0


_NOTES = Notes()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _NOTES.lines:
        terminalreporter.section("seen")
        for line in _NOTES.lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def notes() -> Notes:
    return _NOTES


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "PATIENCE_S", _PATIENCE_S)


@pytest.fixture(scope="session")
def checkout() -> Iterator[Path]:
    """A copy of the tree as a checkout under umask 077 leaves it, with models readable as the docs say."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    directory = Path(tempfile.mkdtemp(prefix="inferflux-checkout-"))
    umask = os.umask(0o077)
    try:
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, directory / name)
    finally:
        os.umask(umask)
    assert (directory / "docker-compose.yml").stat().st_mode & 0o777 == 0o600
    subprocess.run(["chmod", "-R", "a+rX", "models"], cwd=directory, check=True)  # noqa: S607
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
async def compose(checkout: Path) -> AsyncIterator[Compose]:
    """The project, built and not started; it is taken down with all of its data at the end."""
    ports = {name: str(free_port()) for name in ("GATEWAY", "GATEWAY_HTTP", "NATS", "POLICY")}
    environment = {f"INFERFLUX_{name}_PORT": port for name, port in ports.items()}
    environment |= {"INFERFLUX_WORKER_SLOTS": _SLOTS, "INFERFLUX_POLICY_BOOTSTRAP_KEY": ""}
    project = Compose(PROJECT, checkout, extra=[ROOT / "tests/compose/override.yml"], environment=environment)
    await project.down("--volumes", "--remove-orphans")
    await project.build()
    yield project
    await project.down("--volumes", "--remove-orphans", "--timeout", "10")


@pytest.fixture(scope="session")
async def stack(compose: Compose, notes: Notes) -> Compose:
    """The project, started."""
    notes.add(f"up: healthy after {await compose.up():.1f} s")
    return compose


@pytest.fixture(scope="session")
async def admin_key(stack: Compose) -> str:
    """The key that policy shows once."""
    shown = re.search(r"ifx_[A-Za-z0-9_-]{43}", await stack("logs", "policy"))
    assert shown is not None
    return shown[0]


@pytest.fixture(scope="session")
async def endpoint(stack: Compose) -> str:
    return await stack("port", "gateway", "50051")


@pytest.fixture(scope="session")
async def client(endpoint: str, admin_key: str) -> AsyncIterator[Client]:
    connected = Client(endpoint, admin_key)
    yield connected
    await connected.close()


@pytest.fixture(scope="session")
async def expected(client: Client) -> Answers:
    """The answers of a stack that nothing was done to."""
    return await undisturbed(client)
