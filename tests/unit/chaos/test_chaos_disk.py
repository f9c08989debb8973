"""What chaos does to the folder of a disk tier, and what it finds there."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from chaos import disk

WRITER = """
import sys, time
from pathlib import Path
from inferflux.worker.engine.tiers.folder import Folder
folder = Folder(Path(sys.argv[1]))
print("claimed", flush=True)
sys.stdin.readline()
(folder.path / "a.kv.tmp").touch()
sys.stdin.readline()
try:
    (folder.path / "large").write_bytes(bytes(1 << 20))
except OSError as error:
    print(error.strerror, flush=True)
time.sleep(60)
"""


def writer(kv: Path) -> subprocess.Popen[str]:
    """A process with a folder of its own, which writes when it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(kv)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    return process


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_process_is_killed_only_while_it_writes(tmp_path: Path) -> None:
    with writer(tmp_path / "kv") as process:
        try:
            assert disk.folder_of(process.pid) == tmp_path / "kv" / "0"
            assert not disk.kill_while_writing(process.pid, 0.05)
            assert process.poll() is None
            tell(process)
            assert disk.kill_while_writing(process.pid, 30.0)
            assert process.wait(30) == -9
        finally:
            process.kill()
    assert disk.folder_of(process.pid) is None
    assert disk.wrongs([tmp_path / "kv" / "0"], 1 << 20) == [f"{tmp_path}/kv/0/a.kv.tmp was never finished"]


def test_a_full_disk_refuses_long_writes(tmp_path: Path) -> None:
    with writer(tmp_path / "kv") as process, disk.full(process.pid):
        try:
            tell(process)
            tell(process)
            assert process.stdout is not None
            assert process.stdout.readline() == "File too large\n"
        finally:
            process.kill()
    with disk.full(process.pid):  # it is gone
        pass


def test_files_are_spoilt_and_what_was_added_counts_as_no_process_s(tmp_path: Path) -> None:
    for n in range(6):
        (tmp_path / f"{n}.kv").write_bytes(bytes(100))
    assert disk.spoil(tmp_path, random.Random(1)) == 8
    spoilt = [path for path in tmp_path.glob("?.kv") if path.read_bytes() != bytes(100)]
    assert len(spoilt) == 4
    assert {path.stat().st_size == 100 for path in spoilt} == {True, False}
    assert disk.wrongs([tmp_path], 600) == []
    (found,) = disk.wrongs([tmp_path], 100)
    assert "and may have 100" in found
