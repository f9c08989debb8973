"""Folders of temporary files go with their process, or with the next one of their kind."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from inferflux.common.process.child.scratch import scratch_folder

LEAVES = """
import os, sys
from inferflux.common.process.child.scratch import scratch_folder
with scratch_folder("kind-") as folder:
    (folder / "a").write_text("x")
    print(folder, flush=True)
    sys.stdin.read(1)
    os._exit(9)
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_folder_goes_when_it_is_left() -> None:
    with scratch_folder("kind-") as folder:
        (folder / "a").write_text("x")
    assert not folder.exists()


def test_what_a_killed_process_left_goes_with_the_next_and_what_lives_stays(tmp_path: Path) -> None:
    for name in ("kind-without-a-lock", "other-kind"):
        (tmp_path / name).mkdir()
    (tmp_path / "other-kind" / ".lock").touch()
    command = [sys.executable, "-c", LEAVES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        with scratch_folder("kind-"):
            assert (folder / "a").read_text() == "x"
        other.communicate("x")
    assert (folder / "a").exists()
    with scratch_folder("kind-"):
        assert not folder.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"kind-without-a-lock", "other-kind"}
