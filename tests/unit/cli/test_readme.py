"""The README names only what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferflux.cli.app import app

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
# `gateway/request/submit.py` stands for services/gateway/inferflux/gateway/request/submit.py.
SERVICE_PATHS = sorted(set(re.findall(r"`((?:gateway|policy|scheduler|worker)/[\w./]*)`", README)))
TREE_PATHS = sorted(set(re.findall(r"`((?:libs|protos|docs|examples|models)/[\w./-]*|[\w-]+\.yml)`", README)))


@pytest.mark.parametrize("path", SERVICE_PATHS)
def test_a_step_of_the_way_is_a_file(path: str) -> None:
    service = path.partition("/")[0]
    assert (ROOT / "services" / service / "inferflux" / path).exists()


@pytest.mark.parametrize("path", TREE_PATHS)
def test_a_path_leads_somewhere(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_commands_are_inferctls() -> None:
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}
    commands |= {group.name or "" for group in app.registered_groups}
    named = set(re.findall(r"inferctl ([a-z]+)", README))
    assert named
    assert named <= commands


@pytest.mark.parametrize("snippet", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_the_snippets_are_python(snippet: str) -> None:
    compile(snippet, "README.md", "exec")
