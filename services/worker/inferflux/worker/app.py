"""Builds a worker, or many with null engines, and runs them until the process is told to leave."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

from inferflux.common.bus import Bus
from inferflux.common.contract.checks import check_model_name
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, InvalidArgument, Unavailable
from inferflux.common.contract.models.model_sources import model_name_of
from inferflux.common.contract.terms import SeenTerms
from inferflux.common.process import logs
from inferflux.common.process.lifecycle import Shutdown
from inferflux.common.process.machine.free_memory import free_bytes
from inferflux.common.process.probe import DRAINING, NO_MODEL, Probe
from inferflux.common.process.tasks import cancel_all
from inferflux.common.redis import store
from inferflux.common.tracing import OFF, open_tracer

from .files.mmproj_file import read_projection
from .files.model_file import ModelFile, ModelFileError, probe_model_file
from .host.catalog import Catalog, Known, Wish
from .host.host import Host
from .host.host_intake import HostIntake
from .host.host_status import HostStatusReports
from .host.host_store import HostStore
from .host.model_parts import Process
from .host.models_config import read_models
from .metrics import WorkerMetrics
from .model.emit import Emitter
from .model.worker_state import WorkerState
from .processes.engine_process import SpareEngine
from .processes.witness import Witness
from .settings import WorkerSettings
from .transfer.transfers import KvProcess

_MODEL_PATH = "INFERFLUX_WORKER_MODEL_PATH"
# How long a worker that starts waits for NATS to take its tokenizers.
_ELECTION_LIMIT_S, _ELECTION_PAUSE_S = 60.0, 0.5
_MMPROJ_PATH = "INFERFLUX_WORKER_MMPROJ_PATH"

log = logs.get("worker")

_Wished = tuple[ModelFile, Wish]


class WorkerReadiness:
    """The answer to the process's probe: ready when all of its workers are."""

    def __init__(self, probe: Probe, worker_ids: Iterable[str]) -> None:
        self._probe = probe
        self._missing = dict.fromkeys(worker_ids, ("starting", NO_MODEL))
        self._failed: dict[str, str] = {}
        self._tell()

    def follow(self, worker_id: str, missing: str, failed: str, *, reason: str = NO_MODEL) -> None:
        """A worker misses this to be ready, in short for this reason, and these models of it have failed; ""
        if none."""
        self._missing[worker_id], self._failed[worker_id] = (missing, reason), failed
        self._tell()

    def _tell(self) -> None:
        missing = [(worker_id, why) for worker_id, why in self._missing.items() if why[0]]
        first, reason = missing[0][1] if missing else ("", "")
        if len(missing) > 1:
            first = f"{missing[0][0]}: {first}, and {len(missing) - 1} workers more"
        self._probe.set_ready("engine", not missing, first, reason=reason)
        self._probe.set_warning("models", "; ".join(filter(None, self._failed.values())))


class Worker:
    """A host of models on the bus. A process is one of these, or has many with null engines."""

    def __init__(
        self, process: Process, wished: list[_Wished], readiness: WorkerReadiness, witness: Witness
    ) -> None:
        settings = process.settings
        self._process = process
        self._wished = wished
        self._readiness = readiness
        self._is_starting = True
        # Set once it knows its models and takes commands.
        self.started = asyncio.Event()
        self._state = WorkerState.begin(settings.id, settings)
        catalog = Catalog(
            settings.id, settings.models_bytes or free_bytes(), settings.models_max, settings.deterministic
        )
        self.host = Host(
            process,
            catalog,
            on_change=self._on_change,
            on_loaded=witness.watch,
            on_gone=witness.forget,
        )
        self._store = HostStore(settings, self.host, on_change=self._report)
        terms = SeenTerms()
        self._reports = HostStatusReports(
            process.bus,
            self._state,
            catalog,
            terms,
            idle_s=settings.models_idle_s,
            store_jobs=self._store.jobs.messages,
        )
        self._intake = HostIntake(
            process.bus, settings.id, terms, self.host, self._store, process.emitter, process.metrics.bad
        )

    async def run(self, shutdown: Shutdown) -> None:
        """Serve until `shutdown`, then drain.

        Raises:
            InvalidArgument: the model of the settings could not be loaded.
        """
        self._update_readiness()
        bus, emitter = self._process.bus, self._process.emitter
        bus.on_disconnect(emitter.on_disconnect)
        bus.on_connect(emitter.on_connect)
        bus.on_reconnect(self._on_reconnect)
        own = {
            asyncio.create_task(shutdown.wait()),
            asyncio.create_task(emitter.repeat_refused()),
        }
        try:
            for file, wish in self._wished:
                known = await self._know(wish, file)
                if wish.is_own:
                    await self.host.load(known.name, must_fit=False)
                    own.add(asyncio.create_task(self._until_unusable(known.name)))
                elif wish.is_pinned:
                    await self._load_first(known.name)
            await self._intake.listen()
            await self._store.know_all()
            self.host.look_ahead()
            self._is_starting = False
            self.started.set()
            self._update_readiness()
            own.add(asyncio.create_task(self._reports.run()))
            own.add(asyncio.create_task(self.host.keep_dividing_tier()))
            done, _ = await asyncio.wait(own, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._drain()
        finally:
            await self._intake.close()
            await self._store.jobs.close()
            await self.host.close()
            await cancel_all(own)

    async def _know(self, wish: Wish, file: ModelFile) -> Known:
        """As `Host.know`. Waits for servers of NATS that elect: they do where one has just been lost."""
        until_s = time.monotonic() + _ELECTION_LIMIT_S
        while True:
            try:
                return await self.host.know(wish, file)
            except (Unavailable, DeadlineExceeded) as error:
                if time.monotonic() > until_s:
                    raise
                log.warning("a tokenizer cannot be stored yet", model=wish.name, reason=error.reason)
                await asyncio.sleep(_ELECTION_PAUSE_S)

    async def _load_first(self, name: str) -> None:
        """Raises InvalidArgument where a model that is to be there from the start has no room."""
        try:
            await self.host.load(name)
        except InferFluxError as error:
            raise InvalidArgument(error.message, field="INFERFLUX_MODELS_BYTES") from None

    async def _until_unusable(self, name: str) -> None:
        """Raises InvalidArgument when the model of the settings cannot be loaded."""
        error = await self.host.until_failed(name)
        raise InvalidArgument(str(error), field=_MODEL_PATH)

    async def _drain(self) -> None:
        self._state.leave()
        self._update_readiness()
        await self._reports.report()
        await self.host.leave(self._process.settings.drain_limit_s)

    def _update_readiness(self) -> None:
        missing, reason = self.host.why_not_ready(), NO_MODEL
        if self._state.is_leaving:
            missing = reason = DRAINING
        elif self._is_starting:
            missing = missing or "reading the models"
        elif not missing:
            missing = self.host.why_not_warm()
            reason = f"{self._process.settings.role} pool not ready"
        self._readiness.follow(self._state.worker_id, missing, self.host.what_failed(), reason=reason)

    async def _on_reconnect(self) -> None:
        try:
            await self._process.emitter.republish()
        except InferFluxError as error:
            # It tries again by itself. Heartbeats and tokenizers do not wait for it.
            log.warning("chunks could not be published again yet", reason=error.reason)
        for worker in list(self.host.workers):
            await worker.beat()
        await self._reports.report()
        await self.host.offer_tokenizers()

    async def _report(self) -> None:
        await self._reports.report()

    async def _on_change(self) -> None:
        self._update_readiness()
        await self._reports.report()


async def _probed(
    path: Path, variable: str, *, chat_template: Path | None = None, prefix: str = ""
) -> ModelFile:
    """Raises InvalidArgument where the file that `variable` names cannot be used."""
    try:
        return await probe_model_file(path, chat_template=chat_template)
    except ModelFileError as error:
        raise InvalidArgument(f"{prefix}{error}", field=variable) from None


async def _models_of(settings: WorkerSettings) -> list[_Wished]:
    """The models that a worker knows from its start, in the order in which it loads those that are pinned.

    Raises:
        InvalidArgument: a file cannot be used; names the setting.
    """
    wished: list[_Wished] = []
    draft = None
    if settings.draft_model is not None:
        variable = "INFERFLUX_WORKER_DRAFT_MODEL"
        draft = await _probed(settings.draft_model, variable, prefix=f"{variable} is ")
    if settings.model_path is not None:
        name = settings.model_name or model_name_of(settings.model_path.name)
        check_model_name(name, field="INFERFLUX_WORKER_MODEL_NAME" if settings.model_name else _MODEL_PATH)
        template = settings.chat_template
        file = await _probed(settings.model_path, _MODEL_PATH, chat_template=template)
        mmproj = None
        if settings.mmproj_path is not None:
            mmproj = read_projection(settings.mmproj_path, field=_MMPROJ_PATH)
        wish = Wish(name, is_pinned=True, is_own=True, mmproj=mmproj, draft=draft, chat_template=template)
        wished.append((file, wish))
    if settings.config is not None:
        for path, wish in read_models(settings.config):
            file = await _probed(path, "INFERFLUX_CONFIG", chat_template=wish.chat_template)
            wished.append((file, wish))
    return together(wished)


def together(wished: list[_Wished]) -> list[_Wished]:
    """Models as they are wished, each once (pure): an entry for a file that comes before under the same name
    says more of that one."""
    made: dict[tuple[str, str], _Wished] = {}
    for file, wish in wished:
        key = wish.name, file.digest
        before = made.get(key)
        made[key] = (file, wish) if before is None else (before[0], before[1].then(wish))
    return list(made.values())


async def _run_all(workers: Iterable[Worker], shutdown: Shutdown) -> None:
    """Run workers until `shutdown`, or until one fails. Each starts when the one before it has started: all
    at once would have more to say than NATS takes."""
    running: set[asyncio.Task[None]] = set()
    starting: asyncio.Task[bool] | None = None
    try:
        for worker in workers:
            running.add(asyncio.create_task(worker.run(shutdown)))
            starting = asyncio.create_task(worker.started.wait())
            done, _ = await asyncio.wait({*running, starting}, return_when=asyncio.FIRST_COMPLETED)
            if done & running:
                break
        await asyncio.gather(*running)
    finally:
        await cancel_all([*running, *([starting] if starting is not None else [])])


async def serve(settings: WorkerSettings, shutdown: Shutdown) -> None:
    """Run a worker from its settings.

    Raises:
        InferFluxError: the model, NATS or the metrics port cannot be used.
    """
    wished = await _models_of(settings)
    probe = Probe(settings.metrics_listen, role=settings.role)
    tracer = OFF
    try:
        tracer = open_tracer(settings, "worker")
        bus = await Bus.connect(settings.nats_url, name=f"worker-{settings.id}", tls=settings.client_tls)
        try:
            await bus.ensure_streams(settings.stream_limits)
            connected = store.connect(settings.redis_url, tls=settings.client_tls)
            async with (
                contextlib.aclosing(connected) as redis,
                contextlib.aclosing(KvProcess(settings)) as kv,
            ):
                await kv.listen()
                with Witness(settings.nats_url, settings.id, settings.client_tls) as witness:
                    members = settings.members
                    readiness = WorkerReadiness(probe, [member.id for member in members])
                    metrics = WorkerMetrics()

                    def worker_of(member: WorkerSettings) -> Worker:
                        # The chunks that are kept are those of the host, which is made with the emitter.
                        emitter = Emitter(bus, lambda: worker.host.kept_chunks())
                        process = Process(member, bus, redis, emitter, tracer, metrics, SpareEngine(), kv)
                        worker = Worker(process, wished, readiness, witness)
                        return worker

                    await _run_all(map(worker_of, members), shutdown)
        finally:
            await bus.close()
    finally:
        await tracer.close()
        probe.close()
