"""The files of an audit chain: rotated, continued, and never rewritten."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inferflux.common.calls.audit.chain import AuditKeys, Head, read_head
from inferflux.common.calls.audit.files import HEAD_FILE, KEY_FILE, ChainFiles, chains_of, files_of, made_key
from inferflux.common.calls.audit.verify import OPENED, Verdict, verify

KEYS = AuditKeys.of("a key of the tests' own")


def open_chain(root: Path) -> ChainFiles:
    return ChainFiles(root, "gateway", KEYS, syncs=False)


def record(i: int, day: int = 1, **fields: object) -> dict[str, object]:
    return {"at": f"2026-01-{day:02d}T00:00:00.000+00:00", "event": "call", "i": i, **fields}


def opened(files: ChainFiles, day: int = 1) -> None:
    files.append([{"at": f"2026-01-{day:02d}T00:00:00.000+00:00", "event": OPENED, **files.opening}])


def checked(folder: Path) -> Verdict:
    paths = files_of(folder)
    lines = [(path.name, path.read_bytes().splitlines(keepends=True)) for path in paths]
    return verify(lines, [KEYS.chain], read_head((folder / HEAD_FILE).read_bytes(), KEYS.chain))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    text = b"".join(path.read_bytes() for path in files_of(folder))
    return [json.loads(line) for line in text.splitlines()]


def test_each_day_has_files_of_its_own(tmp_path: Path) -> None:
    files = open_chain(tmp_path)
    files.append([record(0, day=1), record(1, day=2), record(2, day=2)])
    files.append([record(3, day=3)])
    files.close()
    days = [path.stem.rpartition("-")[2] for path in files_of(tmp_path / "gateway-0")]
    assert days == ["20260101", "20260102", "20260103"]
    assert checked(tmp_path / "gateway-0").problem is None


def test_the_next_process_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    for start in range(3):
        files = open_chain(tmp_path)
        opened(files)
        files.append([record(start)])
        files.close()
    folder = tmp_path / "gateway-0"
    assert len(files_of(folder)) == 1
    assert [line["seq"] for line in lines_of(folder)] == [1, 2, 3, 4, 5, 6]
    assert checked(folder).problem is None


def test_processes_that_live_together_have_a_chain_each(tmp_path: Path) -> None:
    first, second = open_chain(tmp_path), open_chain(tmp_path)
    assert (first.folder.name, second.folder.name) == ("gateway-0", "gateway-1")
    for files in (first, second):
        files.append([record(1)])
    first.close()
    third = open_chain(tmp_path)
    assert third.folder.name == "gateway-0"
    assert third.head.seq == 1
    third.close()
    second.close()
    assert [folder.name for folder in chains_of(tmp_path)] == ["gateway-0", "gateway-1"]
    assert chains_of(tmp_path / "gateway-1") == [tmp_path / "gateway-1"]


@pytest.mark.parametrize("n_bytes", [1, 40, 200])
@pytest.mark.parametrize("day", [1, 2])
def test_a_torn_last_line_stays_and_is_accounted_for(tmp_path: Path, n_bytes: int, day: int) -> None:
    files = open_chain(tmp_path)
    files.append([record(0)])
    files.close()
    (path,) = files_of(tmp_path / "gateway-0")
    with path.open("ab") as file:
        file.write(b'{"seq":2,"prev":"' + b"a" * (n_bytes - 1))
    again = open_chain(tmp_path)
    assert again.head.seq == 1
    opened(again, day)
    again.append([record(1, day)])
    again.close()
    found = checked(tmp_path / "gateway-0")
    assert found.problem is None
    assert (found.n_lines, found.n_torn) == (3, 1)


@pytest.mark.parametrize("day", [1, 2])
@pytest.mark.parametrize("n_lines", [0, 1, 3])
def test_a_last_line_that_lacks_its_newline_alone_is_whole(tmp_path: Path, day: int, n_lines: int) -> None:
    folder = tmp_path / "gateway-0"
    files = open_chain(tmp_path)
    files.append(record(i) for i in range(n_lines))
    files.append([record(n_lines)])
    files.close()
    path = files_of(folder)[-1]
    path.write_bytes(path.read_bytes()[:-1])
    files = open_chain(tmp_path)
    assert "torn" not in files.opening
    opened(files, day)
    files.append([record(n_lines + 1, day)])
    files.close()
    found = checked(folder)
    assert (found.problem, found.n_lines, found.n_torn) == (None, n_lines + 3, 0)


def test_a_process_that_is_killed_again_while_it_begins_is_accounted_for(tmp_path: Path) -> None:
    files = open_chain(tmp_path)
    files.append([record(0)])
    files.close()
    (path,) = files_of(tmp_path / "gateway-0")
    with path.open("ab") as file:
        file.write(b'{"seq":2,"pr\n{"seq":2,')
    again = open_chain(tmp_path)
    opened(again)
    again.close()
    assert checked(tmp_path / "gateway-0").problem is None


def test_a_file_without_a_line_leaves_the_chain_as_it_was(tmp_path: Path) -> None:
    files = open_chain(tmp_path)
    files.append([record(0), record(1)])
    files.close()
    (tmp_path / "gateway-0" / "audit-000000000003-20260101.jsonl").touch()
    again = open_chain(tmp_path)
    assert again.head.seq == 2
    assert "missing_lines" not in again.opening
    opened(again)
    again.close()
    assert checked(tmp_path / "gateway-0").problem is None


def test_an_end_that_was_removed_while_nothing_ran_shows_for_ever(tmp_path: Path) -> None:
    files = open_chain(tmp_path)
    files.append(record(i) for i in range(5))
    files.close()
    (path,) = files_of(tmp_path / "gateway-0")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    again = open_chain(tmp_path)
    assert again.opening["missing_lines"] == 2
    opened(again)
    again.append([record(5)])
    again.close()
    found = checked(tmp_path / "gateway-0")
    assert found.problem is not None
    assert found.problem.line == 4


def test_a_last_line_that_was_edited_while_nothing_ran_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    files = open_chain(tmp_path)
    files.append(record(i) for i in range(3))
    files.close()
    (path,) = files_of(tmp_path / "gateway-0")
    path.write_bytes(path.read_bytes()[:-20] + b"\n")
    again = open_chain(tmp_path)
    opened(again)
    again.close()
    found = checked(tmp_path / "gateway-0")
    assert found.problem is not None
    assert found.problem.line == 3


@pytest.mark.parametrize("content", [None, b"", b"7 abc def\n"])
def test_a_head_that_was_taken_away_is_named(tmp_path: Path, content: bytes | None) -> None:
    files = open_chain(tmp_path)
    files.append([record(0)])
    files.close()
    head = tmp_path / "gateway-0" / HEAD_FILE
    head.unlink() if content is None else head.write_bytes(content)
    again = open_chain(tmp_path)
    opened(again)
    again.close()
    (warning,) = checked(tmp_path / "gateway-0").warnings
    assert "head file" in warning


def test_the_head_is_never_ahead_of_what_is_written(tmp_path: Path) -> None:
    files = open_chain(tmp_path)
    for i in range(5):
        files.append([record(i)])
        head = read_head((files.folder / HEAD_FILE).read_bytes(), KEYS.chain)
        assert head == files.head == Head(i + 1, lines_of(files.folder)[-1]["hash"])
    files.close()


_WRITE_UNTIL_FULL = """
import resource, sys
from pathlib import Path
from inferflux.common.calls.audit.chain import AuditKeys
from inferflux.common.calls.audit.files import ChainFiles
keys = AuditKeys.of("a key of the tests' own")
files = ChainFiles(Path(sys.argv[1]), "gateway", keys, syncs=False)
at = "2026-01-01T00:00:00.000+00:00"
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
n_failed = 0
for i in range(20):
    try:
        files.append([{"at": at, "event": "call", "i": i}])
    except OSError:
        n_failed += 1
assert n_failed > 5, n_failed
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
files.append([])
files.close()
"""


@pytest.mark.parametrize("room", [1000, 1130, 1234])
def test_a_disk_that_is_full_for_a_while_costs_no_line(tmp_path: Path, room: int) -> None:
    """A write that was taken in part goes on where it stopped."""
    subprocess.run([sys.executable, "-c", _WRITE_UNTIL_FULL, str(tmp_path), str(room)], check=True)
    folder = tmp_path / "gateway-0"
    assert [line["i"] for line in lines_of(folder)] == list(range(20))
    assert checked(folder).problem is None


def test_the_trail_and_its_key_are_for_their_owner_alone(tmp_path: Path) -> None:
    root = tmp_path / "audit"
    key = made_key(root)
    assert made_key(root) == key
    assert len(key) >= 32
    files = open_chain(root)
    files.append([record(0)])
    files.close()
    for path in (root / KEY_FILE, files.folder / HEAD_FILE, *files_of(files.folder)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
