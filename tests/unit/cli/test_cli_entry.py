"""inferctl's way in: Ctrl-C while it starts, and what its flags promise."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from inferflux.cli.app import app, complete

# SIGINT arrives when the last of the imports has begun.
_INTERRUPTED_WHILE_IMPORTING = """
import os, signal, sys


class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)


signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
from inferflux.cli.__main__ import main
main()
"""


@pytest.mark.parametrize("name", ["inferflux.common.errors", "inferflux.cli.app"])
def test_ctrl_c_while_it_starts_ends_it_quietly(name: str) -> None:
    script = _INTERRUPTED_WHILE_IMPORTING.format(name=name)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize("command", ["chat", "complete", "completion"])
def test_help_names_the_real_range_of_priorities(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert re.search(r"--priority.*-100<=x<=100", shown)
    assert "ceiling" in shown


def test_completion_is_another_name_of_complete() -> None:
    assert [one.callback for one in app.registered_commands if one.name == "completion"] == [complete]
    shown = CliRunner().invoke(app, ["completion", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert shown.exit_code == 0


def test_an_empty_question_is_refused_before_anything_is_called() -> None:
    for question in ("", "  "):
        refused = CliRunner().invoke(app, ["chat", question], env={"INFERFLUX_ENDPOINT": "127.0.0.1:1"})
        assert refused.exit_code == 2
        assert "the question is empty" in refused.output
