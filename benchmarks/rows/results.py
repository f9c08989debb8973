"""Files of figures (benchmarks/results/latest.json): a key per row, and what it was measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from .table import ROWS, Reading, Row

LATEST = Path(__file__).parents[1] / "results" / "latest.json"
TRIAL = LATEST.with_name("trial.json")
SCHEDULING = LATEST.with_name("scheduling.json")
ENVIRONMENT = "environment"


def environment(root: Path) -> dict[str, Any]:
    """The machine and the versions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "llama_cpp_python": metadata.version("llama-cpp-python"),
        "grpcio": metadata.version("grpcio"),
        "commit": _commit(root),
    }


def load(path: Path) -> dict[str, Any]:
    """Return what was measured so far; nothing if there is no file yet."""
    if not path.exists():
        return {}
    known: dict[str, Any] = json.loads(path.read_text())
    return known


def store(
    reading: Reading, *, measured_on: Mapping[str, Any], path: Path, table: Mapping[str, Row] = ROWS
) -> None:
    """Put one row's figure beside those that are there, in the order of the table."""
    known = load(path)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    known[reading.row.key] = {**reading.to_json(), "measured_at": now, "commit": measured_on.get("commit")}
    ordered = {ENVIRONMENT: dict(measured_on)} | {key: known[key] for key in table if key in known}
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(ordered, indent=2) + "\n")
    draft.replace(path)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _commit(root: Path) -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return result.stdout.strip()
