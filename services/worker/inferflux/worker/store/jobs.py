"""Jobs of a host on its store of models: each is a child process, which reports how far it is."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from inferflux.common.contract.checks import check_model_name
from inferflux.common.contract.errors import (
    Aborted,
    AlreadyExists,
    InferFluxError,
    Internal,
    InvalidArgument,
    NotFound,
)
from inferflux.common.contract.models.model_sources import NO_PROJECTOR, parse_source
from inferflux.common.process import logs
from inferflux.common.process.child.captured import one_line
from inferflux.common.process.tasks import Background
from inferflux.v1 import model_pb2
from inferflux.worker.settings import WorkerSettings

from .folder import Manifest, StoreFolder, read_manifest
from .task import Report, Task

# Jobs that run at once, and how long a host tells of one that has ended.
MOST_RUNNING = 8
TOLD_S = 120.0
# What is told is a part of the host's status, which has to be small.
_MOST_TOLD = 16
_MOST_DIFFERING = 16
_LONGEST_SOURCE = 512
_LONGEST_LINE = 1 << 20

log = logs.get("worker.store")

Take = Callable[[Manifest], Awaitable[str]]
"""Checks what was pulled and makes it a model of the store; returns why its projector is left out, if it is.
Raises InferFluxErrors."""


@dataclass(slots=True)
class _Job:
    message: model_pb2.StoreJob
    source: str
    sha256: str
    mmproj: str = ""
    task: asyncio.Task[None] | None = None
    ended_s: float = 0.0

    @property
    def is_running(self) -> bool:
        return self.message.state == model_pb2.STORE_JOB_STATE_RUNNING


class StoreJobs:
    """Pulls models and reads them again, several at once.

    Args:
        take: see `Take`.
        on_change: awaited when a job has begun, has ended, or is further.
    """

    def __init__(
        self, settings: WorkerSettings, *, take: Take, on_change: Callable[[], Awaitable[None]]
    ) -> None:
        self._settings = settings
        self._take = take
        self._on_change = on_change
        self._jobs: dict[str, _Job] = {}
        self._background = Background()

    @property
    def folder(self) -> StoreFolder:
        """Raises:
        InvalidArgument: this host has no store.
        """
        path = self._settings.models_store
        if path is None:
            message = "this host has no store of models: INFERFLUX_MODELS_STORE names its folder"
            raise InvalidArgument(message, field="host_id", reason="NO_STORE")
        return StoreFolder(path)

    def messages(self) -> list[model_pb2.StoreJob]:
        """Messages about the jobs that run, and those that ended lately."""
        now = time.monotonic()
        self._jobs = {
            job_id: job for job_id, job in self._jobs.items() if job.is_running or now - job.ended_s < TOLD_S
        }
        ended = [job_id for job_id, job in self._jobs.items() if not job.is_running]
        for job_id in ended[: max(len(self._jobs) - _MOST_TOLD, 0)]:
            del self._jobs[job_id]
        return [job.message for job in self._jobs.values()]

    async def pull(self, request: model_pb2.PullRequest) -> model_pb2.StoreJob:
        """Begin to pull a model, or follow the pull of the same one that runs.

        Raises:
            InvalidArgument: the source or the name cannot be.
            AlreadyExists: the store has a model of this name and of another source or digest.
            Aborted: another source is being pulled under the name, or too many jobs run.
        """
        source = parse_source(request.source)
        name = request.name or source.name
        check_model_name(name, field="name")
        folder = self.folder
        for job in self._running(name):
            if (job.source, job.sha256, job.mmproj) == (request.source, request.sha256, request.mmproj):
                return job.message
            message = f"{name!r} is being pulled from {job.message.source}"
            raise Aborted(message, reason="PULLED_ALREADY")
        there = folder.get(name)
        is_same = there is not None and there.source == source.shown and _has_projector(there, request.mmproj)
        if there is not None and is_same and request.sha256 in ("", there.digest):
            return await self._done(there)
        if there is not None:
            message = f"the store has {name!r} of {there.source}: `inferctl models rm` removes it"
            raise AlreadyExists(message, reason="MODEL_NAME_TAKEN")
        self._check_not_many()
        folder.path.mkdir(parents=True, exist_ok=True)
        task = pull_task(self._settings, folder, request, name)
        log.info("a model is pulled", model=name, source=source.shown)
        return await self._begin(model_pb2.STORE_JOB_KIND_PULL, task, source.shown)

    async def verify(self, name: str, gone: tuple[str, ...] = ()) -> model_pb2.StoreJob:
        """Begin to read one model again, or all.

        Args:
            gone: models that should be there and are not: they differ.

        Raises:
            NotFound: there is no such model.
            Aborted: too many jobs run.
        """
        folder = self.folder
        gone = tuple(each for each in gone if name in ("", each))[:_MOST_DIFFERING]
        if name and not gone and folder.get(name) is None:
            raise NotFound(f"the store has no model {name!r}", reason="UNKNOWN_MODEL")
        self._check_not_many()
        return await self._begin(
            model_pb2.STORE_JOB_KIND_VERIFY, Task("verify", str(folder.path), name, gone=gone), ""
        )

    async def stop(self, name: str) -> bool:
        """End a pull of a model that runs; whether there was one."""
        running = self._running(name)
        for job in running:
            if job.task is not None:
                job.task.cancel()
                await asyncio.wait([job.task])
        return bool(running)

    async def close(self) -> None:
        """End what runs; a pull can be resumed."""
        await self._background.close()

    def _running(self, name: str) -> list[_Job]:
        pull = model_pb2.STORE_JOB_KIND_PULL
        return [
            j
            for j in self._jobs.values()
            if j.is_running and (j.message.kind, j.message.name) == (pull, name)
        ]

    def _check_not_many(self) -> None:
        if sum(job.is_running for job in self._jobs.values()) >= MOST_RUNNING:
            raise Aborted(f"{MOST_RUNNING} jobs of the store run already", reason="STORE_BUSY")

    async def _begin(
        self, kind: model_pb2.StoreJobKind.ValueType, task: Task, shown: str
    ) -> model_pb2.StoreJob:
        job = _Job(
            model_pb2.StoreJob(
                job_id=uuid.uuid4().hex,
                kind=kind,
                state=model_pb2.STORE_JOB_STATE_RUNNING,
                name=task.name,
                source=shown[:_LONGEST_SOURCE],
                host_id=self._settings.id,
            ),
            task.source,
            task.sha256,
            task.mmproj,
        )
        self._jobs[job.message.job_id] = job
        job.task = self._background.start(self._run(job, task))
        await self._on_change()
        return job.message

    async def _done(self, manifest: Manifest) -> model_pb2.StoreJob:
        """A job for what is there already."""
        message = model_pb2.StoreJob(
            job_id=uuid.uuid4().hex,
            kind=model_pb2.STORE_JOB_KIND_PULL,
            state=model_pb2.STORE_JOB_STATE_DONE,
            name=manifest.name,
            source=manifest.source[:_LONGEST_SOURCE],
            done_bytes=manifest.size,
            total_bytes=manifest.size,
            digest=manifest.digest,
            host_id=self._settings.id,
        )
        self._jobs[message.job_id] = _Job(message, "", "", ended_s=time.monotonic())
        await self._on_change()
        return message

    async def _run(self, job: _Job, task: Task) -> None:
        report = Report(has_ended=True, code=Aborted.code, reason="STOPPED", message="it was stopped")
        try:
            report = await self._child(job, task)
            if task.do == "pull" and not report.code:
                report = await self._taken(job, task, report)
        except OSError as error:
            report = _failed(Internal(f"the store does not work: {error}", reason="STORE_BROKEN"))
        finally:
            _note(job.message, report)
            failed, done = model_pb2.STORE_JOB_STATE_FAILED, model_pb2.STORE_JOB_STATE_DONE
            job.message.state = failed if report.code else done
            job.ended_s = time.monotonic()
            say = log.warning if report.code else log.info
            say("a job of the store has ended", do=task.do, model=task.name, why=report.message)
        await self._on_change()

    async def _taken(self, job: _Job, task: Task, report: Report) -> Report:
        """End of a pull, once its model is one of the store or was refused."""
        _note(job.message, replace(report, has_ended=False, doing="reading its head"))
        try:
            with self.folder.pulling(task.name) as parts:
                why_blind = await self._take(read_manifest(parts))
        except ValueError as error:
            return _failed(Internal(str(error), reason="STORE_BROKEN"))
        except InferFluxError as error:
            return _failed(error)
        return replace(report, message=f"without its projector: {why_blind}") if why_blind else report

    async def _child(self, job: _Job, task: Task) -> Report:
        """Last words of a child process; what it says before is noted."""
        process = subprocess.Popen(  # noqa: ASYNC220 - returns when the child has begun
            [sys.executable, "-m", "inferflux.worker.store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            if process.stdin is None or process.stdout is None:
                raise OSError("no pipes")
            with process.stdin as stdin:
                stdin.write(task.to_json().encode())  # fits a pipe
            reader = asyncio.StreamReader(limit=_LONGEST_LINE)
            protocol = asyncio.StreamReaderProtocol(reader)
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_read_pipe(lambda: protocol, process.stdout)
            with contextlib.closing(transport):
                while line := await reader.readline():
                    report = Report.from_json(line)
                    if report.has_ended:
                        return report
                    _note(job.message, report)
        except ValueError as error:  # a line that is too long, or no report
            return _failed(Internal(f"its process says what cannot be read: {error}", reason="STORE_BROKEN"))
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)
        why = f"its process ended: status {process.returncode}"
        return _failed(Internal(why, reason="STORE_BROKEN"))


def pull_task(
    settings: WorkerSettings, folder: StoreFolder, request: model_pb2.PullRequest, name: str
) -> Task:
    """A pull as a child process is told of it."""
    return Task(
        "pull",
        str(folder.path),
        name,
        source=request.source,
        sha256=request.sha256,
        mmproj=request.mmproj,
        quota=settings.models_store_bytes,
        networks=settings.http_allowed_networks,
        ca=str(settings.http_ca or ""),
        hugging_face=settings.hf_endpoint,
        ollama=settings.ollama_endpoint,
        hf_token=settings.hf_token.get_secret_value(),
    )


def _has_projector(manifest: Manifest, which: str) -> bool:
    """True if a model of the store has the projector that is asked for, as `choose_projector` has it."""
    if which == NO_PROJECTOR:
        return manifest.projector is None
    name = PurePosixPath(which).name
    return not which or (manifest.projector is not None and manifest.projector.name == name)


def _note(message: model_pb2.StoreJob, report: Report) -> None:
    if report.total or report.done:
        message.done_bytes, message.total_bytes = report.done, report.total
    message.doing = one_line(report.doing)[:200]
    message.digest, message.code, message.reason = report.digest, report.code, report.reason
    message.field, message.message = report.field, one_line(report.message)[:1000]
    message.differing[:] = report.differing[:_MOST_DIFFERING]


def _failed(error: InferFluxError) -> Report:
    field = error.field if isinstance(error, InvalidArgument) else ""
    return Report(has_ended=True, code=error.code, reason=error.reason, field=field, message=error.message)
