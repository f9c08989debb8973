"""What commands refuse before a message would: texts that are not UTF-8, numbers and files without an end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from inferflux.api.errors import InvalidArgument
from inferflux.cli.__main__ import main
from inferflux.cli.app import app
from inferflux.cli.operate.policy_transfer import _write
from inferflux.cli.reach.bounds import read_stdin
from inferflux.cli.reach.command import state_path
from inferflux.cli.reach.errors import CommandError
from inferflux.client.requests import Options, chat_request, generate_request, tokenize_request

ENV = {"INFERFLUX_ENDPOINT": "127.0.0.1:1", "INFERFLUX_API_KEY": "key", "COLUMNS": "200"}
# They make no messages: processes of this machine say what they take.
LOCAL = {("up",), ("rpc-server",), ("models", "plan"), ("admin", "audit", "tail")}
NO_BYTE = "a\udcff"


@pytest.mark.parametrize(
    "words",
    [
        ["admin", "api-keys", "create", "acme", NO_BYTE],
        ["models", "load", f"/{NO_BYTE}"],
        ["chat", "--model", "m", NO_BYTE],
        ["chat", "--model", "m", "--system", NO_BYTE, "hi"],
        ["complete", "--model", "m", NO_BYTE],
        ["embed", "--model", "m", NO_BYTE],
        ["cancel", NO_BYTE],
    ],
)
def test_a_text_that_is_not_utf_8_ends_a_command_with_a_line(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["inferctl", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = str(ended.value.code)
    assert said.startswith("inferctl: ")
    assert "udcff" in said or "codec can't encode" in said
    assert "\n" not in said


@pytest.mark.parametrize("encoding", ["utf-8:strict", "utf-8:surrogateescape"])
def test_bytes_of_standard_input_that_are_not_utf_8_are_refused(encoding: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "inferflux.cli", "chat", "--model", "m"],
        input=b"\xff",
        capture_output=True,
        env={**os.environ, **ENV, "PYTHONIOENCODING": encoding},
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"inferctl: ")
    assert ended.stderr.count(b"\n") == 1


def test_the_client_names_the_field_of_a_text_that_is_not_utf_8() -> None:
    ordinary: dict[str, Any] = {"priority": 0, "resume_window_s": 0, "skip_answer_cache": False}
    options = Options()
    with pytest.raises(InvalidArgument, match="text"):
        generate_request(NO_BYTE, model="m", options=options, **ordinary)
    with pytest.raises(InvalidArgument, match=r"messages\[0\].content"):
        chat_request(NO_BYTE, model="m", options=options, **ordinary)
    with pytest.raises(InvalidArgument, match="text"):
        tokenize_request(NO_BYTE, model="m")
    with pytest.raises(InvalidArgument, match="model"):
        tokenize_request([], model=NO_BYTE)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", {})
    if not below:
        yield path, command
    for name, each in below.items():
        yield from commands(each, (*path, name))


def test_each_flag_with_a_number_for_a_message_has_bounds() -> None:
    flags = [
        (path, parameter.name, getattr(parameter, "min", None), getattr(parameter, "max", None))
        for path, command in commands(get_command(app))
        if path not in LOCAL
        for parameter in command.params
    ]
    bounded = [flag for flag in flags if flag[2] is not None]
    assert len(bounded) > 20
    assert not [flag for flag in bounded if flag[3] is None]


@pytest.mark.parametrize(
    "words",
    [
        ["admin", "rate-limit", "set", "tenant:x", "--requests-per-minute", "9" * 23],
        ["admin", "guardrails", "set", "--max-characters", "99999999999999"],
        ["admin", "api-keys", "create", "acme", "search", "--expires", "999999999d"],
        ["admin", "api-keys", "rotate", "id", "--overlap", "999999999d"],
        ["chat", "--model", "m", "--schema", "/dev/zero", "hi"],
        ["chat", "--model", "m", "--tools", "/dev/zero", "hi"],
    ],
)
def test_what_no_message_holds_is_a_wrong_flag(words: list[str]) -> None:
    refused = CliRunner().invoke(app, words, env=ENV)
    assert refused.exit_code == 2, refused.output


def test_the_longest_time_until_a_key_expires_can_be_sent() -> None:
    words = ["admin", "api-keys", "create", "acme", "search", "--expires", "36500d"]
    assert "nothing answers" in str(CliRunner().invoke(app, words, env=ENV).exception)


@pytest.mark.parametrize("flag", ["--blocklist", "--wordlist", "--rules"])
def test_a_file_without_an_end_is_refused(flag: str) -> None:
    refused = CliRunner().invoke(app, ["admin", "guardrails", "set", flag, "/dev/zero"], env=ENV)
    assert str(refused.exception) == "/dev/zero cannot be read: it has more than 16 MiB"


def test_standard_input_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/zero").open() as zero:
        monkeypatch.setattr(sys, "stdin", zero)
        with pytest.raises(CommandError, match="standard input cannot be read: it has more than 16 MiB"):
            read_stdin()


def test_a_document_is_not_written_in_place_of_a_folder(tmp_path: Path) -> None:
    for folder in (Path("/"), Path(), tmp_path):
        with pytest.raises(CommandError, match="is a folder"):
            _write(folder, "{}")


def test_an_empty_state_directory_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Path] = []
    monkeypatch.setenv("INFERFLUX_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("inferflux.cli.app.with_client", lambda *given: seen.append(state_path(given[-1])))
    for words in (["--state-dir", ""], [], ["--state-dir", "."]):
        CliRunner().invoke(app, ["status", *words])
    assert seen == [tmp_path, tmp_path, Path.cwd()]
