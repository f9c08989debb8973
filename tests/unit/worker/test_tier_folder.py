"""Files of the disk tier are whole, of this engine, or gone."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.kv_states import IDENTITY, is_whole, state_of

from inferflux.worker.engine.kv.envelope import Refused
from inferflux.worker.engine.tiers.disk import LEFT_S, PAUSE_S, Disk, DiskUnavailable, Event
from inferflux.worker.engine.tiers.folder import Folder, name_of

OTHER = dataclasses.replace(IDENTITY, model="other")


def names(folder: Folder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir() if path.name != "lock")


def scanned(folder: Folder) -> list[str]:
    return [name for name, _ in folder.scan(IDENTITY)]


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    name = folder.write(state_of(range(30), n_bytes=70_000))
    assert is_whole(folder.read(name, IDENTITY))
    assert names(folder) == [name]


def test_no_other_user_can_read_the_prompts_in_the_files(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "kv")
    name = folder.write(state_of(range(30)))
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder.path, folder.path / name)]
    assert modes == [0o700, 0o600]


def test_a_new_process_finds_the_files_by_their_headers_the_longest_unused_first(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    stored = [folder.write(state_of(range(n, n + 20))) for n in range(3)]
    for age, name in zip((1, 3, 2), stored, strict=True):
        os.utime(folder.path / name, ns=(0, time.time_ns() - age * 10**9))
    folder.close()
    again = Folder(tmp_path)
    assert scanned(again) == [stored[1], stored[2], stored[0]]
    again.read(stored[1], IDENTITY)
    assert scanned(again) == [stored[2], stored[0], stored[1]]


def test_what_is_damaged_foreign_or_unfinished_is_removed_when_it_is_found(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    good = folder.write(state_of(range(20)))
    foreign = folder.write(state_of(range(20), scope="of another model", identity=OTHER))
    cut = folder.write(state_of(range(21)))
    (folder.path / cut).write_bytes((folder.path / cut).read_bytes()[:-1])
    header = folder.write(state_of(range(22)))
    damaged = bytearray((folder.path / header).read_bytes())
    damaged[100] ^= 1
    (folder.path / header).write_bytes(damaged)
    (folder.path / "junk.kv").write_bytes(b"junk")
    (folder.path / "empty.kv").touch()
    (folder.path / "unfinished.kv.tmp").write_bytes(b"junk")
    assert {foreign, cut, header} <= set(names(folder))
    assert scanned(folder) == [good]
    assert names(folder) == [good]


def test_a_damaged_payload_is_refused_when_it_is_read_and_its_file_removed(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    name = folder.write(state_of(range(20)))
    damaged = bytearray((folder.path / name).read_bytes())
    damaged[-1] ^= 1
    (folder.path / name).write_bytes(damaged)
    assert scanned(folder) == [name]
    with pytest.raises(Refused, match="corrupt: its payload"):
        folder.read(name, IDENTITY)
    assert names(folder) == []


def test_pipes_links_and_folders_are_neither_waited_for_nor_followed(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "kv")
    good = folder.write(state_of(range(20)))
    elsewhere = tmp_path / "elsewhere"
    (folder.path / good).rename(elsewhere)
    (folder.path / good).symlink_to(elsewhere)
    os.mkfifo(folder.path / "pipe.kv")
    (folder.path / "folder.kv").mkdir()
    (folder.path / "nowhere.kv").symlink_to("nowhere")
    assert scanned(folder) == []
    assert names(folder) == ["folder.kv"]
    assert elsewhere.exists()


def test_files_that_are_named_like_nothing_of_ours_stay(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "notes.txt").write_text("of another program")
    folder = Folder(tmp_path)
    assert scanned(folder) == []
    assert names(folder) == ["notes.txt"]


def test_a_file_under_the_name_of_other_tokens_is_refused(tmp_path: Path) -> None:
    """Its state would be taken for theirs, and answers would be wrong."""
    folder = Folder(tmp_path)
    wanted, other = folder.write(state_of(range(20))), folder.write(state_of(range(20), scope="other"))
    (folder.path / other).rename(folder.path / wanted)
    with pytest.raises(Refused, match="foreign"):
        folder.read(wanted, IDENTITY)
    assert names(folder) == []
    (folder.path / folder.write(state_of(range(20)))).rename(folder.path / other)
    assert scanned(folder) == []


def test_a_file_that_became_huge_takes_no_memory(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    name = folder.write(state_of(range(20)))
    os.truncate(folder.path / name, 1 << 43)
    with pytest.raises(Refused, match="corrupt"):
        folder.read(name, IDENTITY)
    assert names(folder) == []


def test_a_pipe_in_place_of_a_file_is_a_file_that_is_gone(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    envelope = state_of(range(20))
    disk.write(envelope)
    disk.flush()
    path = tmp_path / "0" / name_of(envelope.header)
    path.unlink()
    os.mkfifo(path)
    try:
        assert disk.read(path.name, envelope.n_bytes).result(10).envelope is None
    finally:
        with contextlib.suppress(OSError):  # lets a reader that waits for it end
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    disk.close()


def test_processes_that_share_a_folder_have_a_part_of_it_each(tmp_path: Path) -> None:
    first, second = Folder(tmp_path), Folder(tmp_path)
    assert first.path != second.path
    first.close()
    assert Folder(tmp_path).path == first.path


_WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from harness.kv_states import state_of
from inferflux.worker.engine.tiers.folder import Folder
folder = Folder(Path(sys.argv[1]))
states = [state_of(range(n, n + 20), n_bytes=2_000_000) for n in range(3)]
print("writing", flush=True)
for i in range(1_000_000):
    folder.write(states[i % 3])
"""


@pytest.mark.parametrize("kill_after", range(5))
def test_a_process_that_is_killed_while_it_writes_leaves_whole_files_alone(
    tmp_path: Path, kill_after: int
) -> None:
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=root
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        changes = 0
        seen: set[str] = set()
        while changes < 2 + kill_after:  # killed in the middle of some write or other
            there = {p.name for p in (tmp_path / "0").iterdir()}
            changes += there != seen
            seen = there
        writer.kill()
    folder = Folder(tmp_path)
    found = scanned(folder)
    assert sorted(found) == names(folder)
    assert all(is_whole(folder.read(name, IDENTITY)) for name in found)


def test_reads_and_writes_go_on_in_the_background(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    envelope = state_of(range(20))
    disk.write(envelope)
    disk.flush()
    (change,) = disk.changes()
    assert (change.event, change.name) == (Event.STORED, name_of(envelope.header))
    read = disk.read(change.name, envelope.n_bytes).result()
    assert read.envelope is not None
    assert is_whole(read.envelope)
    disk.remove(change.name)
    disk.flush()
    assert disk.read(change.name, envelope.n_bytes).result().envelope is None
    disk.close()
    assert disk.take_error() == ""


def test_files_of_an_earlier_process_are_found(tmp_path: Path) -> None:
    first = Disk(tmp_path, IDENTITY)
    first.write(state_of(range(20)))
    first.flush()
    first.close()
    second = Disk(tmp_path, IDENTITY)
    second.flush()
    (found,) = second.changes()
    assert (found.event, found.header.tokens.tolist()) == (Event.FOUND, list(range(20)))
    second.close()


@contextlib.contextmanager
def files_of_at_most(n_bytes: int) -> Iterator[None]:
    """The kernel refuses longer writes to this process, as it does when a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_turns_writing_off_for_a_time_and_says_so_once(tmp_path: Path) -> None:
    now_s = [0.0]
    disk = Disk(tmp_path, IDENTITY, lambda: now_s[0])
    with files_of_at_most(1 << 20):
        for n in range(3):
            disk.write(state_of(range(n, 20), n_bytes=2 << 20))
        disk.flush()
    assert [change.event for change in disk.changes()] == [Event.LOST] * 3
    assert "File too large" in disk.take_error()
    assert disk.take_error() == ""
    assert not disk.can_write(1)
    assert list((tmp_path / "0").glob("*.kv*")) == []
    now_s[0] = PAUSE_S
    assert disk.can_write(1)
    disk.write(state_of(range(20)))
    disk.flush()
    assert [change.event for change in disk.changes()] == [Event.STORED]
    disk.close()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskUnavailable, match="file"):
        Disk(tmp_path / "file", IDENTITY)


def test_a_folder_that_is_removed_meanwhile_is_taken_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    disk.write(state_of(range(20)))
    disk.flush()
    shutil.rmtree(tmp_path / "0")
    newcomer = Folder(tmp_path)  # another process has that part by now
    assert newcomer.path == tmp_path / "0"
    disk.write(state_of(range(1, 21)))
    disk.flush()
    assert [change.event for change in disk.changes()] == [Event.STORED] * 2
    assert disk.take_error() == ""
    assert len(list((tmp_path / "1").glob("*.kv"))) == 1
    assert names(newcomer) == []
    assert Folder(tmp_path).path == tmp_path / "2"
    disk.close()


def test_what_dead_processes_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    living, dead, starts = Folder(tmp_path), Folder(tmp_path), Folder(tmp_path)
    for folder in (living, dead, starts):
        for days, n in ((8, 0), (6, 1)):
            name = folder.write(state_of(range(n, n + 20)))
            used_ns = time.time_ns() - days * 86_400 * 10**9
            os.utime(folder.path / name, ns=(used_ns, used_ns))
    (dead.path / "notes").touch()
    os.utime(dead.path / "notes", ns=(0, 0))
    dead.close()
    starts.close()
    disk = Disk(tmp_path, IDENTITY)
    assert LEFT_S == 7 * 86_400
    disk.flush()
    disk.close()
    assert len(names(living)) == 2
    assert len(list((tmp_path / "1").glob("*.kv"))) == 2  # it is the new process's own
    assert len(list((tmp_path / "2").glob("*.kv"))) == 1
    assert (tmp_path / "1" / "notes").exists()
