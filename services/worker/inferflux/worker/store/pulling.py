"""Pulls a model into the parts of a store: all its files, each checked, and the manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from inferflux.common.contract.models.model_sources import parse_source
from inferflux.common.http.http_client import HttpClient

from .folder import MANIFEST, PART, STATE, StoredFile, StoreFolder, write_manifest
from .lookup import Endpoints, Lookup
from .task import Report, Task
from .transfer import Transfer, Wanted

Say = Callable[[Report], None]


async def pull(task: Task, store: StoreFolder, client: HttpClient, say: Say) -> Report:
    """Get all files of the model that a task names. They become one of the store by `StoreFolder.commit`.

    Raises:
        InferFluxError: they cannot be had. What can be resumed is left.
    """
    source = parse_source(task.source)
    endpoints = Endpoints(task.hugging_face, task.ollama, task.hf_token)
    say(Report(doing="looking it up"))
    found = await Lookup(client, endpoints, task.retries).find(source, task.sha256, task.mmproj)
    wanted = found.all
    with store.pulling(task.name) as folder:
        _reopen(folder.glob("*"), {file.name for file in wanted})
        counted = _Counted(wanted, say)
        room = store.room(task.quota, but=task.name)
        if all(file.size is not None for file in wanted):
            there = sum(path.stat().st_size for path in folder.glob(f"*{PART}"))
            room.check(sum(file.size or 0 for file in wanted), there=there)
        files: list[StoredFile] = []
        for file in wanted:
            check = _Check(store, task, sum(done.size for done in files))
            transfer = Transfer(
                client,
                folder,
                file,
                check_room=check,
                reckoning=store.reckoning,
                progress=counted,
                retries=task.retries,
            )
            files.append(await transfer.run())
        for done in files:
            (folder / (done.name + PART)).replace(folder / done.name)
            (folder / (done.name + PART + STATE)).unlink(missing_ok=True)
        projector = files.pop() if found.projector is not None else None
        manifest = write_manifest(folder, task.name, source.shown, tuple(files), projector)
        return Report(
            done=manifest.size,
            total=manifest.size,
            has_ended=True,
            digest=manifest.digest,
        )


class _Check:
    """Check that a file has room, beside `before` bytes of its model, as others' parts and the disk are."""

    def __init__(self, store: StoreFolder, task: Task, before: int) -> None:
        self._store = store
        self._task = task
        self._before = before

    def __call__(self, size: int, there: int) -> None:
        room = self._store.room(self._task.quota, but=self._task.name)
        room.check(self._before + size, there=self._before + there)


def _reopen(paths: Iterable[Path], names: set[str]) -> None:
    """Files that a pull had finished and that never became a model are parts again. Others are deleted."""
    for path in list(paths):
        whole = path.name.removesuffix(STATE).removesuffix(PART)
        if whole not in names:
            path.unlink()
        elif path.name == whole and whole != MANIFEST:
            path.replace(path.with_name(whole + PART))


class _Counted:
    """Adds up what is there of each file."""

    def __init__(self, wanted: list[Wanted], say: Say) -> None:
        self._done: dict[str, int] = {}
        self._totals: dict[str, int | None] = {file.name: file.size for file in wanted}
        self._say = say

    def __call__(self, file: str, done: int, total: int | None, doing: str) -> None:
        self._done[file], self._totals[file] = done, total
        sizes = [size for size in self._totals.values() if size is not None]
        whole = sum(sizes) if len(sizes) == len(self._totals) else 0
        self._say(Report(done=sum(self._done.values()), total=whole, doing=doing))
