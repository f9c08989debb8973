"""Each distribution as `pip install` leaves it: its wheels, and what they declare, alone."""

from __future__ import annotations

import email
import importlib.metadata
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.deploy import ROOT
from harness.gateway import GatewayProcess
from harness.images import link
from harness.policy import PolicyProcess, until
from harness.scheduler_stage import Standby
from harness.worker import DEMO_MODEL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from inferflux.cli.stack.servers import free_port

pytestmark = pytest.mark.long
FOLDERS = {
    canonicalize_name(tomllib.loads(path.read_text())["project"]["name"]): path.parent
    for path in ROOT.glob("*/**/pyproject.toml")
    if not {".venv", "node_modules"} & set(path.parts)
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each of our distributions."""
    built = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "-w", str(built), *map(str, FOLDERS.values())], check=True, timeout=110)
    return {canonicalize_name(path.name.partition("-")[0]): path for path in built.glob("*.whl")}


def needs(distribution: str, wheels: dict[str, Path]) -> list[str]:
    """Requirements of a distribution: of ours as its wheel says, of others as installed here."""
    if distribution in wheels:
        with zipfile.ZipFile(wheels[distribution]) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            return email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist") or []
    try:
        return importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:  # of another Python or system
        return []


def declared(
    distribution: str, extras: set[str], wheels: dict[str, Path], found: set[tuple[str, str]]
) -> None:
    """Add what `pip install DISTRIBUTION[EXTRAS]` would install."""
    for extra in extras | {""}:
        if (distribution, extra) in found:
            continue
        found.add((distribution, extra))
        for need in map(Requirement, needs(distribution, wheels)):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                declared(canonicalize_name(need.name), need.extras, wheels, found)


def install(distribution: str, wheels: dict[str, Path], directory: Path) -> str:
    """A Python that has this distribution, and what it declares."""
    venv.create(directory, with_pip=False, symlinks=True)
    site = directory / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    found: set[tuple[str, str]] = set()
    declared(distribution, set(), wheels, found)
    names = {name for name, _ in found}
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site)]
    ours = [str(wheels[name]) for name in sorted(names & wheels.keys())]
    subprocess.run([*command, *ours], check=True, timeout=110)
    for name in sorted(names - wheels.keys()):
        link(name, site)
    return str(directory / "bin/python")


@asynccontextmanager
async def ready(python: str, module: str, port: int, env: dict[str, str]) -> AsyncIterator[None]:
    """Run the module until it says on its metrics port that it is ready."""
    process = subprocess.Popen([python, "-I", "-m", module], env=env)
    try:
        await Standby(module, process, port).until_ready(timeout_s=60)
        yield
    finally:
        process.kill()
        process.wait()


async def test_policy_starts(wheels: dict[str, Path], tmp_path: Path, valkey_url: str) -> None:
    python = install("inferflux-policy", wheels, tmp_path / "venv")
    policy = PolicyProcess(tmp_path, valkey_url)
    async with ready(python, "inferflux.policy", policy.metrics_port, policy.environment):
        pass
    await policy.close()


async def test_a_gateway_starts(wheels: dict[str, Path], tmp_path: Path, nats_url: str) -> None:
    python = install("inferflux-gateway", wheels, tmp_path / "venv")
    gateway = GatewayProcess(tmp_path, nats_url, f"127.0.0.1:{free_port()}")
    process = subprocess.Popen([python, "-I", "-m", "inferflux.gateway"], env=gateway.environment)

    async def waits_for_policy() -> bool:
        """All that it needs but policy, which is not there."""
        assert process.poll() is None
        status, body = await gateway.get("/readyz")
        return status == 503 and '"policy"' in body

    try:
        await until(waits_for_policy)
    finally:
        process.kill()
        process.wait()
        await gateway.close()


@pytest.mark.parametrize("service", ["scheduler", "worker"])
async def test_it_starts(service: str, wheels: dict[str, Path], tmp_path: Path, nats_url: str) -> None:
    python = install(f"inferflux-{service}", wheels, tmp_path / "venv")
    port = free_port()
    env = {
        "INFERFLUX_NATS_URL": nats_url,
        "INFERFLUX_METRICS_LISTEN": f"127.0.0.1:{port}",
        "INFERFLUX_WORKER_MODEL_PATH": str(DEMO_MODEL),
        "INFERFLUX_WORKER_ID": "of-a-wheel",
    }
    async with ready(python, f"inferflux.{service}", port, env):
        pass


def test_inferctl_answers(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = install("inferflux-cli", wheels, tmp_path / "venv")
    for arguments in (["--version"], ["up", "--help"]):
        command = [python, "-I", "-m", "inferflux.cli", *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr
