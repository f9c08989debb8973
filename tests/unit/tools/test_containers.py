"""tools/containers/run.sh says in a line why it cannot run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from harness.deploy import ROOT


def run(programs: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it with these programs before all others."""
    return subprocess.run(
        [str(ROOT / "tools/containers/run.sh"), "python", "echo", "the command ran"],
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def assert_refused(done: subprocess.CompletedProcess[str], why: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("make compose-test cannot run here: ")
    assert why in done.stderr


def test_another_system_than_linux_is_refused(tmp_path: Path) -> None:
    program(tmp_path, "uname", "echo Darwin")
    assert_refused(run(tmp_path), "it needs Linux")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_a_user_that_is_not_root_is_refused(tmp_path: Path) -> None:
    assert_refused(run(tmp_path), "it needs root")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to get as far")
def test_a_machine_with_neither_an_engine_nor_apt_is_refused(tmp_path: Path) -> None:
    for name in ("docker", "awk"):
        program(tmp_path, name, "exit 1")
    for name in ("nsenter", "ip"):
        program(tmp_path, name, "exit 0")
    done = run(tmp_path, INFERFLUX_CONTAINERS_DIR=str(tmp_path / "cache"))
    assert_refused(done, "no container engine with Compose v2 runs")
    assert not (tmp_path / "cache").exists()
