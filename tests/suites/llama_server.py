"""llama.cpp's own server tests, of the version that is built here, against a stack.

They come from the source package at run time. What depends on the words or the token counts of its tiny test
models is taken out of their asserts; whole files that test how its server is set up are left out.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

from benchmarks.rows.peer_build import source

from .environments import environment
from .rows import Row, of_case
from .stack import Served

# Of its server's own processes, files and options, which another server does not have.
_LEFT_OUT = (
    *("router", "mcp_servers", "tools_builtin", "sleep", "slot_save", "lora", "kv_keep_only_active"),
    *("speculative", "compat_gcp", "proxy"),
)
# What an assert has that is of its test models or of that server alone: it is taken out. The rest stays.
_NOT_ASKED = {
    r"\b(n_(prompt|predicted|cached|tokens|past|prompt_processed)|re_content|re_results)\b": "counts",
    r"\b(expected|expected_content|(prompt|predicted|cache)_n|timings|cached_tokens)\b": "counts",
    r"\btokens_(evaluated|predicted|cached)\b": "counts",
    r"\b(most_relevant|least_relevant|bosId)\b|'<s> |\['id'\] > 0": "words of its test models",
    r"startswith\('b'\)|\.gguf|\badaptive_": "its build and options",
    r"\bserver\.(n_predict|n_slots|n_ctx|seed)\b": "its build and options",
    r"content('\])? is None": "an empty content in the first part of a stream, which OpenAI's has too",
    r"llama-test-model|\bfinish_reason ==|== finish_reason\b": "its model's name and length of answers",
    r"completion_probabilities'\]\) == 1": "a part of a stream may hold several tokens",
    r"status_code == 500": "a bad request is 400 here",
    r"exceed_context_size_error|\['n_ctx'\]|\['n_prompt_tokens'\]": "its error of a context that is exceeded",
    r"'too large' in|'exceeds the available context size' in": "words of its errors",
}


def run(stack: Served, folder: Path) -> list[Row]:
    """Rows of all cases.

    Args:
        folder: where the tests are unpacked; it is the caller's to remove.
    """
    python = environment("suites")
    there = _prepared(source(os.environ), folder)
    report = folder / "report.xml"
    env = os.environ | {
        "SUITE_URL": stack.url,
        "SUITE_KEY": stack.key,
        "SUITE_MODELS": json.dumps(stack.models),
        "SUITE_ON_DEMAND": json.dumps(stack.on_demand),
    }
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
            [*command, f"--junitxml={report}", "unit"],
            cwd=there,
            env=env,
            stdout=log,
            stderr=log,
            check=False,
        )
    return [of_case(case, _suite(case)) for case in ET.parse(report).iter("testcase")]  # noqa: S314 - pytest wrote it


def _prepared(checkout: Path, folder: Path) -> Path:
    """The tests as they are run here, where they find the templates that they name."""
    there = folder / "tools/server/tests"
    unit = there / "unit"
    unit.mkdir(parents=True)
    (folder / "models").symlink_to(checkout / "models")
    for file in (checkout / "tools/server/tests/unit").glob("test_*.py"):
        if file.stem.removeprefix("test_") not in _LEFT_OUT:
            (unit / file.name).write_text(_without_models_words(file.read_text()))
    for name, copy in (("llama_utils.py", "utils.py"), ("llama_skips.py", "conftest.py")):
        shutil.copy(Path(__file__).with_name(name), there / copy)
    return there


def _without_models_words(source: str) -> str:
    """A module without the asserts that only its test models can hold."""
    return ast.unparse(ast.fix_missing_locations(_Asserts().visit(ast.parse(source))))


class _Asserts(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        text = ast.unparse(node.test)
        return ast.Pass() if any(re.search(pattern, text) for pattern in _NOT_ASKED) else node


def _suite(case: ET.Element) -> str:
    return "llama.cpp: Anthropic" if "anthropic" in case.get("classname", "") else "llama.cpp: server"
