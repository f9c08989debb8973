"""Files of pieces are used again once they were read, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness.kv_states import IDENTITY

from inferflux.worker.engine.kv.envelope import Envelope
from inferflux.worker.engine.tiers.pieces import PieceFiles

TOKENS = np.arange(8, dtype=np.int32)
LIMIT = 1 << 20


@pytest.fixture
def files(tmp_path: Path) -> Iterator[PieceFiles]:
    made = PieceFiles(IDENTITY, tmp_path, LIMIT)
    yield made
    made.close()


def written(files: PieceFiles, byte: int, *, n_bytes: int = 1000) -> str:
    name, envelope = files.blank("", TOKENS, 0, n_bytes)
    envelope.payload[:] = byte
    files.write(name, envelope).result(20)
    return name


def read(files: PieceFiles, name: str) -> Envelope:
    return files.read(name).result(20)


def test_a_file_that_was_read_has_the_next_piece(files: PieceFiles, tmp_path: Path) -> None:
    name = written(files, 1)
    assert files.is_unread(name)
    assert set(read(files, name).payload) == {1}
    files.taken(name)
    assert not files.is_unread(name)
    (spare,) = (tmp_path / "pieces").iterdir()
    inode = spare.stat().st_ino
    again = written(files, 2, n_bytes=900)
    assert again != name
    found = read(files, again).payload
    assert (found.shape[0], set(found)) == (900, {2})
    (file,) = (tmp_path / "pieces").iterdir()
    assert (file.name, file.stat().st_ino) == (again, inode)


def test_a_transfer_that_ends_late_removes_no_piece_of_another(files: PieceFiles) -> None:
    name = written(files, 1)
    files.taken(name)
    assert not files.is_unread(name)
    again = written(files, 2)
    files.discard(name)
    assert files.is_unread(again)
    assert set(read(files, again).payload) == {2}


def test_a_file_that_was_removed_is_not_used_again(files: PieceFiles) -> None:
    """Its reader may read it still."""
    name = written(files, 1)
    envelope = read(files, name)
    files.discard(name)
    assert not files.is_unread(name)
    assert written(files, 2) != name
    assert set(envelope.payload) == {1}


@pytest.mark.parametrize("n_bytes", [100_000, 60])
def test_a_file_of_another_size_is_left_alone(files: PieceFiles, n_bytes: int) -> None:
    name = written(files, 1, n_bytes=30_000)
    files.taken(name)
    assert not files.is_unread(name)
    assert written(files, 2, n_bytes=n_bytes) != name


def test_a_file_that_was_removed_meanwhile_is_made_anew(files: PieceFiles, tmp_path: Path) -> None:
    name = written(files, 1)
    files.taken(name)
    assert not files.is_unread(name)
    for path in (tmp_path / "pieces").iterdir():
        path.unlink()
    again = written(files, 2)
    assert again != name
    assert set(read(files, again).payload) == {2}


def test_files_that_wait_make_room_for_pieces_and_do_not_stay(files: PieceFiles, tmp_path: Path) -> None:
    names = [written(files, 1, n_bytes=100_000) for _ in range(3)]
    for name in names:
        files.taken(name)
        assert not files.is_unread(name)
    # An eighth of the limit waits at most: one of them.
    assert len(list((tmp_path / "pieces").iterdir())) == 1
    written(files, 2, n_bytes=LIMIT - 50_000)
    files.close()
    assert len(list((tmp_path / "pieces").iterdir())) == 1


def test_what_is_made_ahead_leaves_files_to_the_engine_that_wait(files: PieceFiles, tmp_path: Path) -> None:
    """It is made in another thread."""
    name = written(files, 1, n_bytes=100_000)
    unread = written(files, 1, n_bytes=800_000)
    files.taken(name)
    assert not files.is_unread(name)
    files.prepare(200_000)
    assert files._preparing is not None
    assert isinstance(files._preparing.exception(20), OSError)
    assert len(list((tmp_path / "pieces").iterdir())) == 2
    again = written(files, 2, n_bytes=200_000)
    assert {path.name for path in (tmp_path / "pieces").iterdir()} == {unread, again}
