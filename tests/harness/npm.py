"""Packages of npm for tests: installed once as their lock says, outside of the repository."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

_INSTALL = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
# npm's own way to wait for an absent registry takes a minute.
_RETRIES = ("--fetch-retries=2", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000")
_VERSION = ("node", "--version")
_INSTALL_S = 90.0
_FILES = ("package.json", "package-lock.json")
# These say that the files in the repository are wrong, not that this machine cannot install.
_OUR_FAULTS = {"EINTEGRITY", "EUSAGE", "EJSONPARSE"}
_CODE = re.compile(r"^npm error code (\S+)$", re.MULTILINE)
WAIT_S = 60.0


class CannotInstall(Exception):
    """The machine lacks what an installation needs; the message says what."""


def installed(folder: Path) -> Path:
    """A directory with `node_modules` as the lock in `folder` says, shared by checkouts and processes.

    Raises:
        CannotInstall: node or npm is absent or too old, or no registry gives the packages.
        RuntimeError: the lock and the packages do not fit each other.
    """
    _check_node(folder)
    place = _cache() / hashlib.sha256(b"\0".join((folder / name).read_bytes() for name in _FILES)).hexdigest()
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="new-") as made:
        for name in _FILES:
            shutil.copy(folder / name, made)
        _install(Path(made))
        whole = Path(made) / "whole"
        whole.mkdir()
        (Path(made) / "node_modules").rename(whole / "node_modules")
        try:
            whole.rename(place)
        except OSError:
            # Another process was first.
            if not place.exists():
                raise
    return place


def _check_node(folder: Path) -> None:
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            raise CannotInstall(f"{command} is not installed")
    needed = int(json.loads((folder / "package.json").read_text())["engines"]["node"].removeprefix(">="))
    said = subprocess.run(_VERSION, capture_output=True, text=True, timeout=30, check=True).stdout
    if int(said.removeprefix("v").split(".")[0]) < needed:
        raise CannotInstall(f"node is {said.strip()}: {needed} or newer is needed")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inferflux" / "npm"


def _install(folder: Path) -> None:
    try:
        ran = subprocess.run(
            (*_INSTALL, *_RETRIES),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"`{' '.join(_INSTALL)}` took more than {_INSTALL_S:.0f} s") from None
    if ran.returncode == 0:
        return
    found = _CODE.search(ran.stderr)
    if found is not None and found[1] in _OUR_FAULTS:
        raise RuntimeError(ran.stderr)
    raise CannotInstall(f"`{' '.join(_INSTALL)}` failed: {found[1] if found else ran.stderr.strip()[-300:]}")


class Script:
    """A script of node that prints a line of JSON and stays. Use as an async context manager."""

    def __init__(self, path: Path, *arguments: str, env: Mapping[str, str]) -> None:
        self._command = ("node", str(path), *arguments)
        self._env = {**os.environ, **env}
        self._process: subprocess.Popen[str]

    async def __aenter__(self) -> Self:
        # Not by asyncio, for the reason that inferctl.run gives.
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command, env=self._env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.communicate)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def tell(self) -> None:
        """Send the script a line."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    async def said(self) -> Any:
        """What it printed.

        Raises:
            AssertionError: it ended without a line, or took more than `WAIT_S`.
        """
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        reading = asyncio.to_thread(self._process.stdout.readline)
        try:
            line = await asyncio.wait_for(reading, WAIT_S)
        except TimeoutError:
            self._process.kill()
            raise AssertionError(f"{self._command} printed nothing") from None
        assert line, await asyncio.to_thread(self._process.stderr.read)
        return json.loads(line)
