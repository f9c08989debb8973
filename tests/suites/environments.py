"""Environments of Python that suites run in: made once, of pinned packages, and kept for every checkout."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment(name: str) -> Path:
    """The Python of the environment that `requirements/NAME.txt` describes; installed where it is not yet.

    Raises:
        subprocess.CalledProcessError: a package could not be installed.
    """
    pins = ROOT / "requirements" / f"{name}.txt"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:12]
    folder = cache / "inferflux" / "suites" / f"{name}-{digest}"
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return python
    print(f"installing the packages of {pins.name}, once", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    # Without their dependencies: the file has all of them, each with its hash.
    install = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--require-hashes", "-r", str(pins)]
    subprocess.run(install, check=True, env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    done.touch()
    return python
