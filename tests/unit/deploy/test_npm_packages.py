"""Packages of npm that tests install: what their lock says, and when they cannot be installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import npm
from harness.deploy import ROOT

FOLDER = ROOT / "tests/e2e/openai_npm"


def test_the_lock_has_hashes_and_names_no_registry() -> None:
    packages = json.loads((FOLDER / "package-lock.json").read_text())["packages"]
    needed = {name: package for name, package in packages.items() if name}
    assert "node_modules/openai" in needed
    assert all(package["integrity"].startswith("sha512-") for package in needed.values())
    assert not any("resolved" in package for package in needed.values())


def test_a_machine_without_node_is_told_what_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(npm.CannotInstall, match=r"^node is not installed$"):
        npm.installed(FOLDER)


def test_an_old_node_is_told_which_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("node", "npm"):
        (tmp_path / command).write_text("#!/bin/sh\necho v18.19.0\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(npm.CannotInstall, match=r"^node is v18\.19\.0: 20 or newer is needed$"):
        npm.installed(FOLDER)
