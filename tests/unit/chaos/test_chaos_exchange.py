"""What happens to pieces of KV state in a folder, and what may be left there."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from chaos import exchange


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "fleet" / "exchange"
    for part in ("pieces", "sockets"):
        (made / part).mkdir(parents=True)
    (made / "lock").touch()
    return made


def test_pieces_are_waited_for(folder: Path) -> None:
    assert not exchange.wait_for_piece(folder, 0.01)
    (folder / "pieces" / "a-0.tmp").write_bytes(b"state")
    assert exchange.wait_for_piece(folder, 10.0)


def test_pieces_are_harmed_in_every_way_and_nothing_foreign_stays(folder: Path) -> None:
    written: dict[str, bytes] = {}
    is_over = threading.Event()

    def write() -> None:
        for n in range(200):
            data = random.Random(n).randbytes(1000)
            written[f"a-{n}"] = data
            (folder / "pieces" / f"a-{n}").write_bytes(data)
            time.sleep(0.001)
        is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    n = exchange.spoil(folder, random.Random(1), 0.3)
    writer.join()
    assert is_over.is_set()
    left = {path.name: path.read_bytes() for path in (folder / "pieces").iterdir()}
    harmed = [name for name, data in written.items() if left.get(name) != data]
    assert n > 10
    assert len(harmed) > 5
    assert any(name not in left for name in harmed)
    assert any(0 < len(left.get(name, b"")) < 1000 for name in harmed)
    assert any(left.get(name) in written.values() for name in harmed)
    assert set(left) <= set(written)


def test_a_full_folder_has_room_again(folder: Path) -> None:
    with exchange.full(folder, 1 << 30):
        assert sum(path.stat().st_size for path in (folder / "pieces").iterdir()) == 1 << 30
    assert not list((folder / "pieces").iterdir())


def test_what_lies_there_when_nothing_is_on_its_way_is_told(folder: Path) -> None:
    assert exchange.left(folder, set()) == []
    (folder / "pieces" / "a-0").touch()
    for name in ("alive", "dead"):
        (folder / "sockets" / name).touch()
    assert exchange.left(folder, {"alive"}) == ["the piece a-0 was left", "the socket of dead was left"]


def test_only_state_that_the_next_worker_may_take_remains(folder: Path) -> None:
    assert len(exchange.remains(folder)) == 5
    for part in ("pieces", "sockets"):
        (folder / part).rmdir()
    (folder / "state.kv").touch()
    root = folder.parent
    assert exchange.remains(folder) == []
    (folder / "state.kv").unlink()
    assert exchange.remains(folder) == [f"{path} is left" for path in (root, folder, folder / "lock")]
    (folder / "lock").unlink()
    folder.rmdir()
    root.rmdir()
    assert exchange.remains(folder) == []
