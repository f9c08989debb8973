"""Files that are replaced as a whole, where someone else may write to their folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from inferflux.common.calls.audit.files import KEY_FILE, made_key
from inferflux.common.process.private_files import replacing, write_all, write_private


def test_what_is_written_has_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_private(tmp_path / "private", "a")
        write_private(tmp_path / "readable", "b", mode=0o644)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("private", "readable")]
    assert modes == [0o600, 0o644]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["private", "readable"]


def test_nothing_is_left_and_nothing_replaced_where_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, "before")

    def write() -> None:
        with replacing(path) as file:
            write_all(file.fileno(), b"half of it")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"


@pytest.mark.parametrize("plant", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_a_link_that_was_planted_under_the_name_beside_is_not_followed(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("another's")
    path = tmp_path / "file"
    plant(victim, tmp_path / f".file.{os.getpid()}")
    write_private(path, "mine")
    plant(victim, tmp_path / "file.new")
    with replacing(path, beside=tmp_path / "file.new") as file:
        write_all(file.fileno(), b"mine as well")
    assert victim.read_text() == "another's"
    assert path.read_text() == "mine as well"
    assert not path.is_symlink()
    assert path.stat().st_nlink == 1


def test_a_link_that_is_planted_again_at_once_stops_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("another's")
    beside = tmp_path / "file.new"
    beside.symlink_to(victim)
    unlink = Path.unlink

    def racing(path: Path, *, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        path.symlink_to(victim)

    monkeypatch.setattr(Path, "unlink", racing)
    with pytest.raises(FileExistsError), replacing(tmp_path / "file", beside=beside):
        pass
    assert victim.read_text() == "another's"
    assert not (tmp_path / "file").exists()


def test_a_link_in_place_of_the_file_itself_is_replaced(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("another's")
    (tmp_path / "file").symlink_to(victim)
    write_private(tmp_path / "file", "mine")
    assert (victim.read_text(), (tmp_path / "file").read_text()) == ("another's", "mine")


def test_the_audit_key_follows_no_link(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    folder.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("another's")
    (folder / f".{KEY_FILE}.{os.getpid()}").symlink_to(victim)
    key = made_key(folder)
    assert made_key(folder) == key
    assert victim.read_text() == "another's"
    assert stat.S_IMODE((folder / KEY_FILE).stat().st_mode) == 0o600


def test_no_other_file_of_the_services_writes_and_renames_by_itself() -> None:
    """A new writer of a file that is renamed into place goes through `replacing`."""
    root = Path(__file__).parents[3]
    found = [
        path.relative_to(root).as_posix()
        for folder in ("services", "libs", "convert", "cli")
        for path in (root / folder).rglob("*.py")
        if ".rename(" in (text := path.read_text()) or ".replace(path" in text or "os.replace(" in text
    ]
    assert sorted(found) == [
        "cli/inferflux/cli/model_files/download.py",  # a file of a package that is whole
        "cli/inferflux/cli/model_files/fetching.py",  # the same, once its hash was checked
        "cli/inferflux/cli/stack/supervisor.py",  # a log that is set aside
        "libs/common/inferflux/common/process/child/scratch.py",  # a lock, once it is held
        "libs/common/inferflux/common/process/pieces.py",  # one that was read, for its maker
        "libs/common/inferflux/common/process/private_files.py",
        "services/gateway/inferflux/gateway/request/call.py",  # of a span
        "services/worker/inferflux/worker/engine/tiers/folder.py",  # a whole file into another folder
        "services/worker/inferflux/worker/engine/tiers/pieces.py",  # a piece, once it is sealed
        "services/worker/inferflux/worker/store/folder.py",  # whole folders
        "services/worker/inferflux/worker/store/pulling.py",  # a finished file is a part again
    ]
