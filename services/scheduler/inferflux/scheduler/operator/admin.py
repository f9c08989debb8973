"""Changes that operators make while it runs: fairness, which outlives the scheduler, and which workers
drain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Protocol, TypeVar

from inferflux.common.bus import Bus, Message
from inferflux.common.bus.ask import ask
from inferflux.common.bus.serving import Subscription
from inferflux.common.contract import checks, subjects
from inferflux.common.contract.errors import (
    Aborted,
    DeadlineExceeded,
    InferFluxError,
    InvalidArgument,
    Unavailable,
)
from inferflux.common.contract.partitions import Partition
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background
from inferflux.scheduler.core.lifecycle.checks import check_admin
from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.scheduler.core.types.moves import Move
from inferflux.scheduler.core.workers.drains import DrainProgress
from inferflux.scheduler.core.workers.hosts import HostTable
from inferflux.scheduler.edge.host_commands import command_host, command_store
from inferflux.v1 import model_pb2, scheduler_pb2, worker_pb2

from .fairness_store import FairnessStore, applied
from .host_admin import ModelAdministration

log = logs.get("scheduler.admin")

_T = TypeVar("_T")
# Longest wait for a worker, whose engine answers within 4 s.
_WORKER_LIMIT_S = 5.0
# Longest wait for a request that moves: its state is waited for 10 s, and the other worker has to take it.
_MOVE_LIMIT_S = 15.0


class WorkerCommands(Protocol):
    """As `worker_commands.WorkerCommands`."""

    def drain(
        self, worker_id: str, *, now: float, undo: bool = ..., hand_over_after_s: float | None = ...
    ) -> list[Action]: ...
    def drain_progress(self, worker_id: str) -> DrainProgress: ...
    def clear_cache(self, worker_id: str, clear: scheduler_pb2.ClearCache) -> worker_pb2.WorkerCommand: ...
    def move(
        self, key: RequestKey, worker_id: str, *, now: float
    ) -> tuple[list[Action], RequestKey, Move]: ...


class AdministeredCore(Protocol):
    """Interface of the scheduler's core that administration needs."""

    @property
    def fairness(self) -> FairnessSettings: ...
    def set_fairness(self, settings: FairnessSettings) -> None: ...
    @property
    def commands(self) -> WorkerCommands: ...
    @property
    def hosts(self) -> HostTable: ...
    @property
    def term(self) -> int: ...


class AskWorker(Protocol):
    """Has a worker clear its cache; raises Unavailable when it does not say that it did."""

    async def __call__(
        self, worker_id: str, command: worker_pb2.WorkerCommand, /
    ) -> scheduler_pb2.ClearedWorker: ...


class Guarded(Protocol):
    """Calls the core for what is named, and notes that it raised."""

    def __call__(self, what: str, work: Callable[[], _T], /) -> _T: ...


class Administration:
    """Does what operators ask for, one after the other.

    Args:
        do: performs what the core decides, and lets it plan.
        clock: seconds, as the core is told them.
        is_lease_held: while it is not, another scheduler may lead.
        guarded: calls the core; Unavailable when it raises.
        ask_worker: for the command that is answered.
        models: has hosts load and unload them.
    """

    def __init__(
        self,
        core: AdministeredCore,
        store: FairnessStore,
        do: Callable[[list[Action]], None],
        clock: Callable[[], float],
        *,
        is_lease_held: Callable[[], bool],
        guarded: Guarded,
        ask_worker: AskWorker,
        models: ModelAdministration,
    ) -> None:
        self._core = core
        self._models = models
        self._ask_worker = ask_worker
        self._guarded = guarded
        self._store = store
        self._do = do
        self._clock = clock
        self._is_lease_held = is_lease_held
        # Changes count on top of these.
        self._configured = core.fairness
        self._one_at_a_time = asyncio.Lock()

    async def load(self) -> None:
        """Go by what was changed under an earlier leader.

        Raises:
            Unavailable, DeadlineExceeded: JetStream does not answer.
        """
        async with self._one_at_a_time:
            self._apply(await self._store.load())

    async def answer(self, data: bytes) -> scheduler_pb2.SchedulerAdminReply | None:
        """Do what a SchedulerAdminRequest asks for; what cannot be done is refused in the reply.

        Returns:
            None while another scheduler may lead.
        """
        try:
            request = checks.decode(scheduler_pb2.SchedulerAdminRequest, data, "request")
            check_admin(request)
            if asked := self._asked_elsewhere(request):  # changes nothing here: no change waits for it
                return await asked() if self._is_lease_held() else None
            async with self._one_at_a_time:
                return await self._answer(request) if self._is_lease_held() else None
        except InferFluxError as error:
            return _refused(error) if self._is_lease_held() else None

    def _asked_elsewhere(
        self, request: scheduler_pb2.SchedulerAdminRequest
    ) -> Callable[[], Awaitable[scheduler_pb2.SchedulerAdminReply]] | None:
        """Return the call that a worker or a host has to answer; None if this scheduler answers by itself."""
        match request.WhichOneof("request"):
            case "clear_cache":
                return lambda: self._clear_cache(request.clear_cache)
            case "move":
                return lambda: self._move(request.move)
            case "load_model":
                return lambda: self._on_model(self._models.load(request.load_model))
            case "unload_model":
                return lambda: self._on_model(self._models.unload(request.unload_model))
            case "add_adapter":
                return lambda: self._on_model(self._models.add_adapter(request.add_adapter))
            case "remove_adapter":
                return lambda: self._on_model(self._models.remove_adapter(request.remove_adapter))
            case "pull_model":
                return lambda: self._on_store(self._models.pull(request.pull_model))
            case "remove_model":
                return lambda: self._on_store(self._models.remove(request.remove_model))
            case "verify_model":
                return lambda: self._on_store(self._models.verify(request.verify_model))
        return None

    async def _on_model(self, asked: Awaitable[model_pb2.Model]) -> scheduler_pb2.SchedulerAdminReply:
        return scheduler_pb2.SchedulerAdminReply(model=await asked)

    async def _on_store(self, asked: Awaitable[model_pb2.StoreJob]) -> scheduler_pb2.SchedulerAdminReply:
        return scheduler_pb2.SchedulerAdminReply(store_job=await asked)

    async def _clear_cache(
        self, request: scheduler_pb2.ClearWorkerCache
    ) -> scheduler_pb2.SchedulerAdminReply:
        worker_id = request.worker_id
        command = self._core.commands.clear_cache(worker_id, request.clear)
        log.info("a worker's cache is cleared", worker_id=worker_id, cache_scope=request.clear.cache_scope)
        cleared = await self._ask_worker(worker_id, command)
        cleared.worker_id = worker_id
        return scheduler_pb2.SchedulerAdminReply(cleared=cleared)

    async def _move(self, request: scheduler_pb2.MoveRequest) -> scheduler_pb2.SchedulerAdminReply:
        key, began_s = RequestKey(request.tenant, request.request_id), self._clock()
        todo, key, move = self._guarded(
            "a move", lambda: self._core.commands.move(key, request.worker_id, now=began_s)
        )
        ended = asyncio.Event()
        move.on_end = ended.set
        self._do(todo)
        try:
            await asyncio.wait_for(ended.wait(), _MOVE_LIMIT_S)
        except TimeoutError:
            message = f"request {key.request_id} is on its way to {move.to_id} still"
            raise DeadlineExceeded(message) from None
        if why := move.why_not:
            message = f"request {key.request_id} was not moved: {why}"
            raise Aborted(message, reason=f"MOVE_{move.outcome.upper()}")
        moved = scheduler_pb2.MovedRequest(
            tenant=key.tenant,
            request_id=key.request_id,
            from_worker_id=move.from_id,
            worker_id=move.to_id,
            tokens=move.tokens,
            took_ms=1000 * (self._clock() - began_s),
        )
        return scheduler_pb2.SchedulerAdminReply(moved=moved)

    async def _answer(
        self, request: scheduler_pb2.SchedulerAdminRequest
    ) -> scheduler_pb2.SchedulerAdminReply:
        match request.WhichOneof("request"):
            case "get_fairness":
                return self._fairness()
            case "set_fairness":
                await self._set_fairness(request.set_fairness)
                return self._fairness()
            case "drain":
                self._drain(request.drain)
                return self._progress(request.drain.worker_id)
            case "get_drain":
                return self._progress(request.get_drain.worker_id)
            case _:
                raise InvalidArgument("nothing is asked for that is known here", field="request")

    async def _set_fairness(self, change: scheduler_pb2.SetFairness) -> None:
        # Kept first: what was confirmed must hold under the next leader as well.
        try:
            self._apply(await self._store.add(change))
        except Aborted:  # who reads them again here has to see the other change
            self._apply(await self._store.load())
            raise
        log.info("fairness was changed", **_fields(self._core.fairness))

    def _apply(self, changes: scheduler_pb2.SetFairness) -> None:
        settings, before = applied(self._configured, changes), self._core.fairness
        if (settings, settings.version) == (before, before.version):
            return
        self._guarded("fairness settings", lambda: self._core.set_fairness(settings))
        if settings != before:
            self._do([])

    def _drain(self, request: scheduler_pb2.DrainRequest) -> None:
        after_s = request.hand_over_after_ms / 1000 if request.HasField("hand_over_after_ms") else None
        worker_id, now = request.worker_id, self._clock()
        todo = self._guarded(
            "a drain",
            lambda: self._core.commands.drain(
                worker_id, undo=request.undo, hand_over_after_s=after_s, now=now
            ),
        )
        self._do(todo)
        log.info(
            "a worker takes requests again" if request.undo else "a worker is drained",
            worker_id=request.worker_id,
            hand_over_after_s=after_s,
        )

    def _fairness(self) -> scheduler_pb2.SchedulerAdminReply:
        return scheduler_pb2.SchedulerAdminReply(fairness=self._core.fairness.to_message())

    def _progress(self, worker_id: str) -> scheduler_pb2.SchedulerAdminReply:
        progress = self._core.commands.drain_progress(worker_id)
        message = scheduler_pb2.DrainProgress(
            residents=progress.residents, is_drained=progress.is_drained, state=progress.state
        )
        return scheduler_pb2.SchedulerAdminReply(drain=message)


async def serve_admin(
    bus: Bus,
    core: AdministeredCore,
    do: Callable[[list[Action]], None],
    clock: Callable[[], float],
    *,
    is_lease_held: Callable[[], bool],
    partition: Partition,
    guarded: Guarded,
    background: Background,
) -> Subscription:
    """Answer SchedulerAdminRequests until the subscription is closed, and take over what was changed before.

    Args:
        partition: of the models, which this scheduler has. The leaders of all answer.
        guarded: calls the core; Unavailable when it raises.
        background: holds the tasks that wait for a worker's answer.

    Raises:
        Unavailable, DeadlineExceeded: what was changed before cannot be read.
    """
    store = FairnessStore(bus.key_value(subjects.SCHEDULERS_BUCKET))

    async def ask_worker(worker_id: str, command: worker_pb2.WorkerCommand) -> scheduler_pb2.ClearedWorker:
        return await _ask_worker(bus, worker_id, command)

    administration = Administration(
        core,
        store,
        do,
        clock,
        is_lease_held=is_lease_held,
        guarded=guarded,
        ask_worker=ask_worker,
        models=ModelAdministration(
            core.hosts,
            core.term,
            lambda *asked: command_host(bus, *asked),
            ask_store=lambda *asked: command_store(bus, *asked),
            partition=partition,
        ),
    )

    async def respond(message: Message) -> None:
        reply = await administration.answer(message.data)
        if reply is not None:
            reply.partition = partition.name
            await message.respond(reply.SerializeToString())

    async def on_request(message: Message) -> None:
        if _is_for_a_worker(message.data):  # others do not wait for it
            background.start(respond(message))
        else:
            await respond(message)

    # In this order, so that no change falls between an earlier leader and this one.
    serving = await bus.serve(subjects.SCHEDULER_ADMIN, on_request)
    try:
        await bus.flush()
        await administration.load()
    except BaseException:
        await serving.close()
        raise
    return serving


# Of these one scheduler alone answers, even if what they name is not known.
_ABOUT_MODELS = frozenset(
    {
        "load_model",
        "unload_model",
        "add_adapter",
        "remove_adapter",
        "pull_model",
        "remove_model",
        "verify_model",
    }
)
_ASKED_ELSEWHERE = _ABOUT_MODELS | {"clear_cache", "move"}


def _is_for_a_worker(data: bytes) -> bool:
    """True if a worker or a host has to answer before the request can be."""
    try:
        asked = checks.decode(scheduler_pb2.SchedulerAdminRequest, data).WhichOneof("request")
        return asked is not None and asked in _ASKED_ELSEWHERE
    except InvalidArgument:
        return False


async def _ask_worker(
    bus: Bus, worker_id: str, command: worker_pb2.WorkerCommand
) -> scheduler_pb2.ClearedWorker:
    subject, kind = subjects.worker_command(worker_id), scheduler_pb2.ClearedWorker
    try:
        return await ask(bus, subject, command, kind, timeout_s=_WORKER_LIMIT_S)
    except DeadlineExceeded:
        message = f"it did not answer in {_WORKER_LIMIT_S:g} s; it may have acted all the same"
        raise Unavailable(message, reason="OUTCOME_UNKNOWN") from None


def _refused(error: InferFluxError) -> scheduler_pb2.SchedulerAdminReply:
    field = error.field if isinstance(error, InvalidArgument) else ""
    refused = scheduler_pb2.AdminRefusal(
        code=error.code, field=field, message=error.message, reason=error.reason
    )
    return scheduler_pb2.SchedulerAdminReply(refused=refused)


def _fields(settings: FairnessSettings) -> dict[str, bool | int]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}
