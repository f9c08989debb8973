"""Tiny models of several architectures: every way of serving gives what llama.cpp alone gives.

`make architectures` tries all of them, with the vocabularies of llama.cpp. These have the demo model's, and
stand for a kind of memory or of layers each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from architectures.families import FAMILIES
from architectures.page import COLUMNS, page_of
from architectures.trying import TRIALS

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
VOCABULARY = ROOT / "models" / "inferflux-demo.gguf"
PAGE = ROOT / "docs" / "architectures.md"
# Latent attention and experts; delta rule and attention; a state alone.
HERE = ("deepseek2", "qwen35", "rwkv7")


def run(module: str, *arguments: str) -> str:
    """Return what a module prints."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("architecture", HERE)
def test_every_answer_is_what_llama_cpp_alone_gives(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / f"{architecture}.gguf"
    run("architectures.writing", architecture, str(VOCABULARY), str(path))
    found = json.loads(run("architectures.trying", str(path)).splitlines()[-1])
    assert {column: found[column] for column in TRIALS} == dict.fromkeys(TRIALS, "")
    path.unlink()


def test_the_page_has_a_row_for_each_architecture() -> None:
    page = PAGE.read_text()
    for name, family in FAMILIES.items():
        assert f"| `{name}` | {family.runs} |" in page


def test_what_does_not_work_is_said_below_the_table() -> None:
    found = dict.fromkeys(COLUMNS, "") | {"parks": "none was evicted", "sharing": "full"}
    page = page_of({"llama": found}, is_small=False)
    assert page.endswith("yes | **no** | yes | whole |\n\n- `llama`, parks: none was evicted\n")
