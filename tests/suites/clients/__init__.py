"""Clients that others wrote, each with a file of cases that runs in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from suites.environments import environment
from suites.rows import Row, of_case
from suites.stack import Served

# Which environment each file of cases needs.
_ENVIRONMENTS = {"llama_index_cases": "suites-llama-index"}


def run(stack: Served, only: str | None = None) -> list[Row]:
    """Rows of all cases of all clients, or of one."""
    rows: list[Row] = []
    pattern = "*_cases.py" if only in (None, "clients") else f"{only.replace('-', '_')}_cases.py"
    for file in sorted(Path(__file__).parent.glob(pattern)):
        python = environment(_ENVIRONMENTS.get(file.stem, "suites"))
        suite = f"client: {file.stem.removesuffix('_cases').replace('_', '-')}"
        print(f"{suite} ...", flush=True)
        rows += _rows(python, file, stack, suite)
    return rows


def _rows(python: Path, file: Path, stack: Served, suite: str) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="suites-") as folder:
        report = Path(folder) / "report.xml"
        env = os.environ | {
            "SUITE_URL": stack.url,
            "SUITE_KEY": stack.key,
            "SUITE_MODEL": stack.models["chat"],
            "SUITE_EMBEDDING": stack.models.get("embedding", ""),
            "OPENAI_API_KEY": stack.key,
            "OPENAI_BASE_URL": f"{stack.url}/v1",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "HF_HUB_OFFLINE": "1",
        }
        options = ["-q", "-c", os.devnull, "--rootdir", folder, "--timeout=120", "-p", "no:cacheprovider"]
        # One loop: clients keep their connections, which are of a loop.
        options += ["-o", "asyncio_mode=auto", "-o", "asyncio_default_test_loop_scope=session"]
        options += ["-o", "asyncio_default_fixture_loop_scope=session"]
        # Beside none of the checkout's conftests, whose imports the environment does not have.
        copy = shutil.copy(file, folder)
        command = [str(python), "-m", "pytest", *options, f"--junitxml={report}", copy]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        if not report.exists():
            return [Row(suite, "all", "failed", (done.stdout + done.stderr)[-200:])]
        cases = ET.parse(report).iter("testcase")  # noqa: S314 - pytest wrote it
        return [of_case(case, suite) for case in cases]
