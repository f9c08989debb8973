"""What a stack keeps on disk."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from inferflux.cli.reach.errors import CommandError
from inferflux.cli.reach.state_dir import StackState, StateDir, default_path
from inferflux.cli.up import state_dir_flag

STATE = StackState(
    pid=1,
    endpoint="127.0.0.1:1",
    api_key="k",
    nats_url="nats://127.0.0.1:2",
    tokens_url="nats://127.0.0.1:2",
    redis_url="redis://127.0.0.1:3/0",
    model="demo",
    processes={"gateway": 5},
    metrics={"gateway": "127.0.0.1:4"},
)


@pytest.fixture
def state_dir(tmp_path: Path) -> StateDir:
    directory = StateDir(tmp_path / "state")
    directory.prepare()
    return directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_key_is_made_once_and_is_its_owners_alone(state_dir: StateDir) -> None:
    key = state_dir.api_key()
    assert key.startswith("ifx_")
    assert len(key) == len("ifx_") + 43
    assert state_dir.api_key() == key
    assert mode(state_dir.path / "bootstrap.key") == 0o600
    assert mode(state_dir.path) == 0o700


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a\x7fb"])
def test_a_name_that_servers_would_read_otherwise_is_refused_before_anything_is_made(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(CommandError, match=r"cannot have .* in it \(--state-dir\)"):
        StateDir(tmp_path / name).prepare()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a b", "a'b", "$a #b", "a,b;{c}", "ünï", "100%"])
def test_other_names_are_taken(tmp_path: Path, name: str) -> None:
    StateDir(tmp_path / name).prepare()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_running_stack_is_found_and_an_ended_one_is_not(state_dir: StateDir) -> None:
    assert state_dir.running() is None
    with state_dir.locked():
        assert state_dir.running() is None
        state_dir.publish(STATE)
        assert state_dir.running() == STATE
        assert mode(state_dir.stack_file) == 0o600
    assert state_dir.running() is None
    assert not state_dir.stack_file.exists()


def test_the_file_of_a_stack_that_was_killed_is_not_believed(state_dir: StateDir) -> None:
    state_dir.publish(STATE)
    assert state_dir.running() is None
    assert state_dir.has_leftovers()


def test_a_second_stack_is_told_the_pid_of_the_first(state_dir: StateDir) -> None:
    with state_dir.locked(), pytest.raises(CommandError, match=f"pid {os.getpid()}"), state_dir.locked():
        pass


def test_a_lock_that_was_refused_does_not_take_the_state_file_away(state_dir: StateDir) -> None:
    with state_dir.locked():
        state_dir.publish(STATE)
        with pytest.raises(CommandError), state_dir.locked():
            pass
        assert state_dir.running() == STATE


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', '"text"'])
def test_a_broken_state_file_counts_as_none(state_dir: StateDir, text: str) -> None:
    with state_dir.locked():
        state_dir.stack_file.write_text(text)
        assert state_dir.running() is None


def test_a_state_survives_its_file(state_dir: StateDir) -> None:
    later = replace(STATE, pid=7)
    assert StackState.from_json(later.to_json()) == later


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="--state-dir"):
        StateDir(tmp_path / "file" / "below").prepare()


def test_the_default_place_follows_the_environment(tmp_path: Path) -> None:
    assert default_path({"INFERFLUX_STATE_DIR": str(tmp_path)}) == tmp_path
    assert default_path({"XDG_STATE_HOME": "/state"}) == Path("/state/inferflux")
    assert default_path({}) == Path.home() / ".local" / "state" / "inferflux"


def test_commands_to_try_name_a_state_directory_that_another_terminal_would_not_find() -> None:
    env = {"XDG_STATE_HOME": "/var/state", "INFERFLUX_STATE_DIR": "/my own"}
    assert state_dir_flag(Path("/var/state/inferflux"), env) == ""
    assert state_dir_flag(Path("/my own"), env) == " --state-dir '/my own'"
