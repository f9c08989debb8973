"""The store of a host: what is pulled becomes a model of it, and is known again at the next start."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from inferflux.common.contract.errors import AlreadyExists, InferFluxError, InvalidArgument, NotFound
from inferflux.common.contract.models.model_sources import parse_source
from inferflux.common.process import logs
from inferflux.v1 import model_pb2
from inferflux.worker.files.mmproj_file import read_projection
from inferflux.worker.files.model_file import ModelFileError, probe_model_file
from inferflux.worker.settings import WorkerSettings
from inferflux.worker.store.folder import Manifest
from inferflux.worker.store.jobs import StoreJobs
from inferflux.worker.store.taking import take

from .catalog import Wish
from .host import Host

log = logs.get("worker.store")


class HostStore:
    """Commands of operators to a store, and what they change of a host's models.

    Args:
        on_change: awaited when a job has changed.
    """

    def __init__(
        self, settings: WorkerSettings, host: Host, *, on_change: Callable[[], Awaitable[None]]
    ) -> None:
        self._settings = settings
        self._host = host
        self._knowing = asyncio.Lock()
        self.jobs = StoreJobs(settings, take=self._take, on_change=on_change)

    async def know_all(self) -> None:
        """Make every model of the store known. One that cannot be is left out, with a line in the log."""
        if self._settings.models_store is None:
            return
        folder = self.jobs.folder
        await asyncio.to_thread(folder.clean, time.time())
        for manifest in folder.manifests():
            try:
                file = await probe_model_file(folder.model(manifest.name) / manifest.files[0].name)
                await self._host.know(await self._wish(manifest), file)
            except (ModelFileError, InferFluxError) as error:
                log.error("a model of the store is not served", model=manifest.name, why=str(error))

    async def pull(self, request: model_pb2.PullRequest) -> model_pb2.StoreJob:
        """Begin to pull a model.

        Raises:
            AlreadyExists: the host has another model of this name.
            InferFluxError: as `StoreJobs.pull`.
        """
        name = request.name or parse_source(request.source).name
        folder = self.jobs.folder
        path = self._path_of(name)
        if path is not None and path.parent != folder.model(name):
            message = f"host {self._settings.id} has another model {name!r}: {path}"
            raise AlreadyExists(message, reason="MODEL_NAME_TAKEN")
        job = await self.jobs.pull(request)
        if job.state == model_pb2.STORE_JOB_STATE_DONE:
            await self._know_again(name)
        return job

    async def _know_again(self, name: str) -> None:
        """Know a model of the store that was forgotten, and not removed. Several calls read it once."""
        async with self._knowing:
            manifest = self.jobs.folder.get(name)
            if manifest is not None and self._path_of(name) is None:
                await self._know(manifest)

    async def verify(self, name: str) -> model_pb2.StoreJob:
        """Begin to read one model again, or all. One that the host knows and that is gone from disk differs.

        Raises:
            InferFluxError: as `StoreJobs.verify`.
        """
        folder = self.jobs.folder
        own = (
            known.name for known in self._host.catalog if known.file.path.parent == folder.model(known.name)
        )
        return await self.jobs.verify(name, tuple(each for each in own if folder.get(each) is None))

    async def remove(self, name: str) -> model_pb2.StoreJob:
        """Delete a model of the store, and what a pull left of it.

        Raises:
            NotFound: neither is there.
            InvalidArgument: the host has the model, and it is not of the store.
            Aborted: it is loaded, or another process pulls it.
        """
        folder = self.jobs.folder
        was_pulled = await self.jobs.stop(name)
        manifest, path = folder.get(name), self._path_of(name)
        is_own = path is not None and path.parent == folder.model(name)
        if not (was_pulled or is_own or folder.model(name).exists() or folder.part(name).exists()):
            if path is not None:
                message = f"{name!r} is not of the store: `inferctl models unload --forget`; its file stays"
                raise InvalidArgument(message, field="name", reason="NOT_OF_STORE")
            raise NotFound(f"the store has no model {name!r}", reason="UNKNOWN_MODEL")
        with folder.pulling(name):
            if is_own:
                await self._host.forget(name)
            freed = await asyncio.to_thread(folder.remove, name)
        log.info("a model of the store is removed", model=name, freed_bytes=freed)
        return model_pb2.StoreJob(
            job_id=uuid.uuid4().hex,
            kind=model_pb2.STORE_JOB_KIND_REMOVE,
            state=model_pb2.STORE_JOB_STATE_DONE,
            name=name,
            source=manifest.source if manifest is not None else "",
            done_bytes=freed,
            total_bytes=freed,
            host_id=self._settings.id,
        )

    async def _take(self, manifest: Manifest) -> str:
        """See `Take`."""
        manifest, why_blind = await take(self.jobs.folder, manifest, self._settings)
        await self._know(manifest)
        return why_blind

    async def _know(self, manifest: Manifest) -> None:
        try:
            file = await probe_model_file(self.jobs.folder.model(manifest.name) / manifest.files[0].name)
        except ModelFileError as error:
            raise InvalidArgument(str(error), field="source", reason="BAD_MODEL_FILE") from None
        await self._host.know(await self._wish(manifest), file)

    async def _wish(self, manifest: Manifest) -> Wish:
        """How a model of the store is to be served.

        Raises:
            InvalidArgument: its projector is no good any more.
        """
        if manifest.projector is None:
            return Wish(manifest.name)
        path = self.jobs.folder.model(manifest.name) / manifest.projector.name
        return Wish(
            manifest.name,
            mmproj=await asyncio.to_thread(
                read_projection, path, field="source", digest=manifest.projector.sha256
            ),
        )

    def _path_of(self, name: str) -> Path | None:
        """Where the file of a model is that the host knows under this name or alias."""
        for known in self._host.catalog:
            if name in (known.name, *known.wish.aliases):
                return known.file.path
        return None
