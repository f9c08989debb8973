"""The folder of pieces, as workers keep it."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from harness.kv_states import IDENTITY

from inferflux.worker.engine.tiers.pieces import PieceFiles
from inferflux.worker.transfer.piece_files import PieceFolder


def exchange_of(root: Path) -> Path:
    exchange = root / "exchange"
    exchange.mkdir(parents=True)
    (exchange / "lock").touch()
    return exchange


def test_what_the_dead_left_is_removed_in_time_and_beside_it_too(tmp_path: Path) -> None:
    own, other = exchange_of(tmp_path / "a"), exchange_of(tmp_path / "b")
    folder = PieceFolder(own, "a", 1 << 20)
    folder.prepare()
    PieceFolder(other, "b", 1 << 20).prepare()
    for exchange in (own, other):
        for name, age_s in (("old", 70), ("old.tmp", 610), ("new", 0), ("new.tmp", 70)):
            piece = exchange / "pieces" / name
            piece.write_bytes(b"left")
            os.utime(piece, (time.time() - age_s, time.time() - age_s))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(other / "sockets" / "dead"))
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(other / "sockets" / "alive"))
        alive.listen()
        folder.sweep()
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/exchange/*/*"))
    assert left == [
        *(f"{beside}/exchange/pieces/{name}" for beside in "ab" for name in ("new", "new.tmp")),
        "b/exchange/sockets/alive",
    ]


def test_a_folder_that_cannot_be_entered_has_nothing(tmp_path: Path) -> None:
    folder = PieceFolder(exchange_of(tmp_path / "a"), "a", 1 << 20)
    folder.prepare()
    exchange = tmp_path / "a" / "exchange"
    files = PieceFiles(IDENTITY, exchange, 1 << 20)
    (exchange / "pieces" / "there").touch()
    user = os.geteuid()
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(exchange / "sockets" / "there"))
        assert folder.has_socket("there")
        assert files.is_unread("there")
        exchange.chmod(0)
        if not user:  # root enters it all the same
            os.seteuid(65534)
        try:
            assert not folder.has_socket("there")
            assert not files.is_unread("there")
        finally:
            os.seteuid(user)
            exchange.chmod(0o700)
            files.close()
