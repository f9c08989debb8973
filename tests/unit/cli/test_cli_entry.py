"""inferctl's way in: Ctrl-C while it starts, and what its flags promise."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from inferflux.cli.app import app
from inferflux.cli.ask.flags import DEFAULT_MAX_TOKENS, GenerationFlags
from inferflux.cli.reach.state_dir import StackState, StateDir

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


@pytest.mark.parametrize("name", ["inferflux.common.contract.errors", "inferflux.cli.app"])
def test_ctrl_c_while_it_starts_ends_it_quietly(name: str) -> None:
    script = _INTERRUPTED_WHILE_IMPORTING.format(name=name)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_help_names_the_real_range_of_priorities(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert re.search(r"--priority.*-100<=x<=100", shown)
    assert "ceiling" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_prints_a_script_for_a_shell_and_asks_no_model(shell: str) -> None:
    shown = CliRunner().invoke(app, ["completion", shell], env={"INFERFLUX_ENDPOINT": "127.0.0.1:1"})
    assert shown.exit_code == 0
    assert "_INFERCTL_COMPLETE" in shown.output
    assert CliRunner().invoke(app, ["completion", "Once upon a time"]).exit_code == 2


def test_the_version_is_an_option_and_a_command() -> None:
    versions = {CliRunner().invoke(app, [how]).output for how in ("--version", "-V", "version")}
    assert len(versions) == 1
    assert versions.pop().startswith("inferctl ")


def test_an_answer_has_a_length_unless_none_is_asked_for() -> None:
    assert GenerationFlags().generation().params().max_tokens == DEFAULT_MAX_TOKENS
    assert not GenerationFlags(max_tokens=0).generation().params().HasField("max_tokens")


def test_an_empty_question_is_refused_before_anything_is_called() -> None:
    for question in ("", "  "):
        refused = CliRunner().invoke(app, ["chat", question], env={"INFERFLUX_ENDPOINT": "127.0.0.1:1"})
        assert refused.exit_code == 2
        assert "the question is empty" in refused.output


def test_the_flag_of_tls_reaches_the_command_and_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    local = StackState(1, "127.0.0.1:1", "key", "", "", "demo", {}, {}, tls_ca="/stack-ca")
    monkeypatch.setattr(StateDir, "running", lambda _: local)
    for flag, ca in ([["--tls-ca", "/flag-ca"], "/flag-ca"], [[], "/stack-ca"]):
        refused = CliRunner().invoke(app, [*flag, "status"])
        assert f"cannot read {ca}" in str(refused.exception)
