"""llama.cpp's own server tests, of the version that is built here, against a stack.

They come from the source package at run time. What depends on the words or the token counts of its tiny test
models is taken out of their asserts; whole files that test how its server is set up are left out.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peer_build import source

from .environments import environment
from .rows import Row, of_case

# Of its server's own processes, files and options, which another server does not have.
_LEFT_OUT = (
    *("router", "mcp_servers", "tools_builtin", "sleep", "slot_save", "lora", "kv_keep_only_active"),
    *("ctx_shift", "speculative", "compat_gcp", "proxy"),
)
# Names in an assert that stand for words and counts of its test models.
_OF_MODELS = frozenset(
    {
        *("n_prompt", "n_predicted", "re_content", "re_results", "expected", "n_cached", "expected_content"),
        *("prompt_n", "predicted_n", "cache_n", "tokens_evaluated", "tokens_predicted", "tokens_cached"),
        *("timings", "cached_tokens", "n_past", "n_prompt_processed"),
    }
)


def run(url: str, key: str, models: Mapping[str, str], folder: Path) -> list[Row]:
    """Rows of all cases.

    Args:
        models: names of the stack's models by what they are for: chat, embedding, rerank ...
        folder: where the tests are unpacked; it is the caller's to remove.
    """
    python = environment("suites")
    tests = source(os.environ) / "tools/server/tests"  # which files they look for from there
    unit = _prepared(tests, folder)
    report = folder / "report.xml"
    env = os.environ | {"SUITE_URL": url, "SUITE_KEY": key, "SUITE_MODELS": json.dumps(dict(models))}
    print("llama.cpp's server tests ...", flush=True)
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "--timeout=120",
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
    ]
    with (folder / "output.log").open("wb") as log:
        subprocess.run(
            [*command, f"--junitxml={report}", str(unit)],
            cwd=tests,
            env=env,
            stdout=log,
            stderr=log,
            check=False,
        )
    return [of_case(case, _suite(case)) for case in ET.parse(report).iter("testcase")]  # noqa: S314 - pytest wrote it


def _prepared(tests: Path, folder: Path) -> Path:
    """The tests as they are run here."""
    unit = folder / "unit"
    unit.mkdir()
    for file in (tests / "unit").glob("test_*.py"):
        if file.stem.removeprefix("test_") not in _LEFT_OUT:
            (unit / file.name).write_text(_without_models_words(file.read_text()))
    shutil.copy(Path(__file__).with_name("llama_utils.py"), folder / "utils.py")
    (folder / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(folder)!r})\n")
    return unit


def _without_models_words(source: str) -> str:
    """A module without the asserts that only its test models can hold."""
    return ast.unparse(ast.fix_missing_locations(_Asserts().visit(ast.parse(source))))


class _Asserts(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        names = {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)}
        names |= {str(one.value) for one in ast.walk(node.test) if isinstance(one, ast.Constant)}
        names |= {one.attr for one in ast.walk(node.test) if isinstance(one, ast.Attribute)}
        return ast.Pass() if names & _OF_MODELS else node


def _suite(case: ET.Element) -> str:
    return "llama.cpp: Anthropic" if "anthropic" in case.get("classname", "") else "llama.cpp: server"
