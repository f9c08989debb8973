"""What can happen to KV state that goes from worker to worker (Linux).

Pieces of it lie in a folder in shared memory for a moment, whatever carries them further.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .disk import damage

# Files that no worker wrote begin with this.
_FOREIGN = "foreign"
_POLL_S = 0.0005


def exchange_of(engine: int) -> Path | None:
    """The folder through which this engine process and others pass state on; None while it has none."""
    with suppress(OSError):
        for fd in Path(f"/proc/{engine}/fd").iterdir():
            with suppress(OSError):
                opened = fd.readlink()
                if opened.name == "lock" and opened.parts[:3] == ("/", "dev", "shm"):
                    return opened.parent.parent / "exchange"
    return None


def pieces(exchange: Path) -> list[Path]:
    """What lies there, the finished and the unfinished."""
    with suppress(OSError):
        return sorted(path for path in (exchange / "pieces").iterdir() if _FOREIGN not in path.name)
    return []


def wait_for_piece(exchange: Path, limit_s: float) -> bool:
    """Return when state is on its way; False if none is within `limit_s`."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        if pieces(exchange):
            return True
        time.sleep(_POLL_S)
    return False


def spoil(exchange: Path, rng: random.Random, lasts_s: float) -> int:
    """For that time, do something to every second piece that is met; returns to how many."""
    until_s = time.monotonic() + lasts_s
    met: set[Path] = set()
    n = 0
    while time.monotonic() < until_s:
        lying = pieces(exchange)
        for path in lying:
            if path not in met and rng.random() < 0.5:
                with suppress(OSError):
                    _harm(path, lying, rng)
                    n += 1
        met.update(lying)
        time.sleep(_POLL_S)
    for path in (exchange / "pieces").glob(f"*{_FOREIGN}*"):
        with suppress(OSError):
            path.unlink()
    return n


def _harm(path: Path, lying: list[Path], rng: random.Random) -> None:
    """Change it, cut it off, remove it, have another one's place taken by it, or exchange it for that one."""
    other = rng.choice(lying)
    beside = path.with_name(f"{_FOREIGN}-{path.name}")
    match rng.randrange(6):
        case 0:
            damage(path, rng, is_cut=False)
        case 1:
            damage(path, rng, is_cut=True)
        case 2:
            path.unlink()
        case 3:
            shutil.copyfile(path, beside)
            beside.replace(other)
        case 4:
            path.rename(beside)
            other.rename(path)
            beside.rename(other)
        case _:
            path.write_bytes(rng.randbytes(rng.choice((0, 7, 5000))))


@contextmanager
def full(exchange: Path, limit_bytes: int) -> Iterator[None]:
    """All that may lie there is taken, by a file that takes no memory."""
    path = exchange / "pieces" / f"{_FOREIGN}-big"
    with suppress(OSError):
        path.touch()
        os.truncate(path, limit_bytes)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def left(exchange: Path, incarnations: set[str]) -> list[str]:
    """What lies there though no state is on its way.

    A file that a killed engine was writing may lie there for ten minutes, while others run.

    Args:
        incarnations: of the workers that run: each has a socket there.
    """
    found = [f"the piece {path.name} was left" for path in pieces(exchange) if path.suffix != ".tmp"]
    with suppress(OSError):
        found += [
            f"the socket of {path.name} was left"
            for path in (exchange / "sockets").iterdir()
            if path.name not in incarnations
        ]
    return found


def remains(exchange: Path) -> list[str]:
    """What is left of it when no worker runs any more.

    State that no other worker has taken yet may be: it is for the next one that starts, for ten minutes.
    """
    root = exchange.parent
    kept = list(exchange.glob("*.kv"))
    may_be = {root, exchange, exchange / "lock", *kept} if kept else set()
    found = [root, *root.rglob("*")] if root.exists() else []
    return [f"{path} is left" for path in found if path not in may_be]
