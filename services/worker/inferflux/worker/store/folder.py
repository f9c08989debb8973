"""The folder of a store.

    STORE/<name>/manifest.json, model.gguf     a model that was pulled, whole and checked
    STORE/.parts/<name>/                       what is being pulled, or was when something broke

A model appears by one rename of its folder. So a crash leaves a part at most, which the next
pull of the name resumes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import Aborted, AlreadyExists
from inferflux.common.process import logs
from inferflux.common.process.private_files import replacing, write_all

from .room import Room

MANIFEST = "manifest.json"
PART = ".part"
STATE = ".state"
# A part that was not touched for this long is removed when a worker starts.
PART_AGE_S = 7 * 86400.0
_LONGEST_FOLDER = 200
_MOST_MANIFEST_BYTES = 1 << 20
_FORMAT = 1

log = logs.get("worker.store")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a model: its name, bytes, hex SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Record of a model in a store.

    Attributes:
        digest: hex SHA-256 of its file; of several, over their digests in hex, a line each.
        size: bytes of all files.
        pulled_unix_ms: when.
        files: of the model itself, the first shard first.
        projector: encodes images or sounds for it; None: it takes none.
    """

    name: str
    source: str
    digest: str
    size: int
    pulled_unix_ms: int
    files: tuple[StoredFile, ...]
    projector: StoredFile | None = None

    @property
    def all_files(self) -> tuple[StoredFile, ...]:
        return self.files if self.projector is None else (*self.files, self.projector)

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=2) + "\n"


def digest_of(files: tuple[StoredFile, ...]) -> str:
    """See `Manifest.digest`."""
    if len(files) == 1:
        return files[0].sha256
    return hashlib.sha256("".join(f"{file.sha256}\n" for file in files).encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Raises:
    ValueError: there is none, or it does not say what it must.
    """
    try:
        path = folder / MANIFEST
        if path.stat().st_size > _MOST_MANIFEST_BYTES:
            raise ValueError("it is too large")
        said: Any = json.loads(path.read_bytes())
        if said.pop("format") != _FORMAT:
            raise ValueError("it is of another format")
        projector = said.get("projector")
        manifest = Manifest(
            name=str(said["name"]),
            source=str(said["source"]),
            digest=str(said["digest"]),
            size=int(said["size"]),
            pulled_unix_ms=int(said["pulled_unix_ms"]),
            files=tuple(map(_stored, said["files"])),
            projector=None if projector is None else _stored(projector),
        )
    except (OSError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{folder / MANIFEST}: {error}") from None
    if not manifest.files or any(Path(file.name).name != file.name for file in manifest.all_files):
        raise ValueError(f"{folder / MANIFEST}: it names no files of its folder")
    return manifest


def _stored(said: Any) -> StoredFile:
    return StoredFile(str(said["name"]), int(said["size"]), str(said["sha256"]))


class StoreFolder:
    """Models on disk. Several worker processes may share one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = path / ".parts"

    def model(self, name: str) -> Path:
        """The folder of a model, whether it is there or not."""
        return self.path / _folder_name(name)

    def part(self, name: str) -> Path:
        """The folder in which it is pulled."""
        return self._parts / _folder_name(name)

    def manifests(self) -> Iterator[Manifest]:
        """Manifests of all models. One that cannot be read is left out."""
        if not self.path.is_dir():
            return
        for folder in sorted(self.path.iterdir()):
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            try:
                manifest = read_manifest(folder)
                if self.model(manifest.name) != folder:
                    raise ValueError(f"{folder} is another model's folder")
            except ValueError as error:
                log.warning("a folder of the store is no model", why=str(error))
            else:
                yield manifest

    def get(self, name: str) -> Manifest | None:
        """The manifest of a model; None if the store does not have it."""
        try:
            return read_manifest(self.model(name))
        except ValueError:
            return None

    def room(self, quota: int, *, but: str) -> Room:
        """Room for what is added for the model `but`."""
        own = self.part(but)
        used = 0
        for folder, folders, files in os.walk(self.path):
            folders[:] = [name for name in folders if Path(folder) / name != own]
            used += sum(_size_of(Path(folder) / name) for name in files)
        return Room(quota, used, shutil.disk_usage(self.path).free)

    @contextlib.contextmanager
    def pulling(self, name: str) -> Iterator[Path]:
        """The folder of its parts, which no other process touches meanwhile.

        Raises:
            Aborted: another process pulls it.
        """
        folder = self.part(name)
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(_Lock(folder)) as lock:
            if not lock.is_held:
                raise Aborted(f"another process pulls {name!r} into this store", reason="PULLED_ELSEWHERE")
            try:
                yield folder
            finally:
                with contextlib.suppress(OSError):  # it holds something, or has become a model
                    folder.rmdir()

    @contextlib.contextmanager
    def reckoning(self) -> Iterator[None]:
        """No other process finds out meanwhile what there is room for, and takes it."""
        with contextlib.closing(_Lock(self.path, waits=True)):
            yield

    def commit(self, name: str) -> None:
        """A model that is whole becomes one of the store.

        Raises:
            AlreadyExists: there is one of this name.
        """
        if self.model(name).exists():
            raise AlreadyExists(f"the store has a model {name!r}", reason="MODEL_NAME_TAKEN")
        sync_folder(self.part(name))
        self.part(name).rename(self.model(name))
        sync_folder(self.path)

    def remove(self, name: str) -> int:
        """Delete a model and what a pull left of it; the bytes that this freed."""
        freed = 0
        for folder in (self.model(name), self.part(name)):
            if folder.is_dir():
                freed += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                self._delete(folder)
        return freed

    def remove_part(self, name: str) -> None:
        """Delete what a pull left."""
        self._delete(self.part(name))

    def clean(self, now_s: float) -> None:
        """Delete what removals left, and parts that are old."""
        if not self._parts.is_dir():
            return
        for folder in self._parts.iterdir():
            # Another process of the store may delete or pull it at this moment.
            with contextlib.suppress(OSError), contextlib.closing(_Lock(folder)) as lock:
                newest = max((p.stat().st_mtime for p in (folder, *folder.glob("*"))), default=0.0)
                is_old = folder.name.startswith(".") or now_s - newest > PART_AGE_S
                if lock.is_held and is_old:
                    shutil.rmtree(folder, ignore_errors=True)

    def _delete(self, folder: Path) -> None:
        self._parts.mkdir(exist_ok=True)
        away = self._parts / f".removed-{uuid.uuid4().hex}"
        folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)


class _Lock:
    """A lock on a folder, which ends with its process.

    Args:
        waits: for another process that holds it.
    """

    def __init__(self, folder: Path, *, waits: bool = False) -> None:
        self._fd = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_held = True
        except OSError:
            self.is_held = False

    def close(self) -> None:
        os.close(self._fd)


def write_manifest(
    folder: Path, name: str, source: str, files: tuple[StoredFile, ...], projector: StoredFile | None = None
) -> Manifest:
    """Write the manifest of a model whose files are in `folder`."""
    size = sum(file.size for file in files) + (projector.size if projector is not None else 0)
    now = time.time_ns() // 1_000_000
    manifest = Manifest(name, source, digest_of(files), size, now, files, projector)
    write_whole(folder / MANIFEST, manifest.to_json().encode())
    return manifest


def without_projector(folder: Path, manifest: Manifest) -> Manifest:
    """Leave the projector of a model in `folder` out: its manifest, and its file."""
    made = write_manifest(folder, manifest.name, manifest.source, manifest.files)
    if manifest.projector is not None:
        (folder / manifest.projector.name).unlink(missing_ok=True)
    return made


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file so that it is there whole or not at all."""
    with replacing(path, mode=0o644, beside=path.with_name(f"{path.name}.new")) as file:
        write_all(file.fileno(), data)
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _folder_name(name: str) -> str:
    escaped = subjects.escape(name)
    return escaped if len(escaped) <= _LONGEST_FOLDER else hashlib.sha256(name.encode()).hexdigest()


def _size_of(path: Path) -> int:
    """Bytes that a file takes, or will take once it is whole."""
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    try:
        if path.name.endswith(PART):
            state = json.loads(path.with_name(path.name + STATE).read_bytes())
            return max(size, int(state.get("total") or 0))
    except (OSError, ValueError, TypeError, AttributeError):
        return size
    return size
