"""Administration by NATS: asks the scheduler that leads, and raises what it refuses."""

from __future__ import annotations

from inferflux.common.bus import Bus
from inferflux.common.bus.leaders import ask_who_has
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import (
    DeadlineExceeded,
    InferFluxError,
    Internal,
    Unavailable,
    from_code,
)
from inferflux.common.contract.partitions import OTHER_PARTITION, UNKNOWN_REQUEST, UNKNOWN_WORKER
from inferflux.v1 import model_pb2, scheduler_pb2

# A standby takes over within three seconds; until then no scheduler answers.
_RETRY_DELAY_S = 3.0
# Where the scheduler has to wait for a worker, for 5 s at most.
_WORKER_TIMEOUT_S = 6.0
# Where it has to wait for a request that moves, for 15 s at most.
_MOVE_TIMEOUT_S = 17.0
# Where a host has to read and try a file first.
_FILE_TIMEOUT_S = 80.0


class SchedulerAdmin:
    """Every method raises Unavailable when no scheduler answers, else what the scheduler refused with."""

    def __init__(self, bus: Bus, *, timeout_s: float) -> None:
        self._bus = bus
        self._timeout_s = timeout_s

    async def fairness(self) -> scheduler_pb2.Fairness:
        """Return what the fairness controller goes by now."""
        return await self._fairness(get_fairness=scheduler_pb2.GetFairness())

    async def set_fairness(self, change: scheduler_pb2.SetFairness) -> scheduler_pb2.Fairness:
        """Change it; returns what it goes by from now on."""
        return await self._fairness(set_fairness=change)

    async def drain(
        self, worker_id: str, *, undo: bool = False, hand_over_after_ms: int | None = None
    ) -> scheduler_pb2.DrainProgress:
        """Have a worker take nothing new, or, with `undo`, take requests again.

        Raises:
            NotFound: there is no such worker.
        """
        request = scheduler_pb2.DrainRequest(
            worker_id=worker_id, undo=undo, hand_over_after_ms=hand_over_after_ms
        )
        return await self._drain(drain=request)

    async def drain_progress(self, worker_id: str) -> scheduler_pb2.DrainProgress:
        """How far its draining is.

        Raises:
            NotFound: there is no such worker.
        """
        return await self._drain(get_drain=scheduler_pb2.GetDrain(worker_id=worker_id))

    async def move(self, request: scheduler_pb2.MoveRequest) -> scheduler_pb2.MovedRequest:
        """Have another worker go on with a request; returns once it does.

        Raises:
            NotFound: there is no such request, or no such worker.
            FailedPrecondition: it cannot be moved there.
            Aborted: it was not moved in the end.
        """
        message = scheduler_pb2.SchedulerAdminRequest(move=request)
        return _part(await self._ask(message, timeout_s=_MOVE_TIMEOUT_S), "moved").moved

    async def clear_cache(self, request: scheduler_pb2.ClearWorkerCache) -> scheduler_pb2.ClearedWorker:
        """Have a worker give cached prefixes up.

        Raises:
            NotFound: there is no such worker.
        """
        message = scheduler_pb2.SchedulerAdminRequest(clear_cache=request)
        return _part(await self._ask(message, timeout_s=_WORKER_TIMEOUT_S), "cleared").cleared

    async def load_model(self, request: model_pb2.LoadModelRequest) -> model_pb2.Model:
        """Have a host begin to load a model; returns it as it is then.

        Raises:
            NotFound: no host knows it, or there is no such host.
            InferFluxError: as the host says why not.
        """
        message = scheduler_pb2.SchedulerAdminRequest(load_model=request)
        timeout_s = _FILE_TIMEOUT_S if request.path else _WORKER_TIMEOUT_S
        return _part(await self._ask(message, timeout_s=timeout_s), "model").model

    async def unload_model(self, request: model_pb2.UnloadModelRequest) -> model_pb2.Model:
        """Have hosts begin to unload a model; raises as `load_model`."""
        message = scheduler_pb2.SchedulerAdminRequest(unload_model=request)
        return _part(await self._ask(message, timeout_s=_WORKER_TIMEOUT_S), "model").model

    async def add_adapter(self, request: model_pb2.AddAdapterRequest) -> model_pb2.Model:
        """Have hosts make a file an adapter of a model; raises as `load_model`."""
        message = scheduler_pb2.SchedulerAdminRequest(add_adapter=request)
        return _part(await self._ask(message, timeout_s=_FILE_TIMEOUT_S), "model").model

    async def remove_adapter(self, request: model_pb2.RemoveAdapterRequest) -> model_pb2.Model:
        """Have hosts forget an adapter of a model; raises as `load_model`."""
        message = scheduler_pb2.SchedulerAdminRequest(remove_adapter=request)
        return _part(await self._ask(message, timeout_s=_WORKER_TIMEOUT_S), "model").model

    async def pull_model(self, request: model_pb2.PullRequest) -> model_pb2.StoreJob:
        """Have a host begin to pull a model into its store; returns what it has begun.

        Raises:
            NotFound: there is no such host.
            InferFluxError: as the host says why not.
        """
        message = scheduler_pb2.SchedulerAdminRequest(pull_model=request)
        return await self._store(message, timeout_s=_WORKER_TIMEOUT_S)

    async def remove_model(self, request: model_pb2.RemoveModelRequest) -> model_pb2.StoreJob:
        """Have a host delete a model of its store; raises as `pull_model`."""
        message = scheduler_pb2.SchedulerAdminRequest(remove_model=request)
        return await self._store(message, timeout_s=_FILE_TIMEOUT_S)

    async def verify_model(self, request: model_pb2.VerifyModelRequest) -> model_pb2.StoreJob:
        """Have a host begin to read models of its store again; raises as `pull_model`."""
        message = scheduler_pb2.SchedulerAdminRequest(verify_model=request)
        return await self._store(message, timeout_s=_WORKER_TIMEOUT_S)

    async def _store(
        self, message: scheduler_pb2.SchedulerAdminRequest, *, timeout_s: float
    ) -> model_pb2.StoreJob:
        return _part(await self._ask(message, timeout_s=timeout_s), "store_job").store_job

    async def _fairness(
        self,
        *,
        get_fairness: scheduler_pb2.GetFairness | None = None,
        set_fairness: scheduler_pb2.SetFairness | None = None,
    ) -> scheduler_pb2.Fairness:
        request = scheduler_pb2.SchedulerAdminRequest(get_fairness=get_fairness, set_fairness=set_fairness)
        return _part(await self._ask(request), "fairness").fairness

    async def _drain(
        self,
        *,
        drain: scheduler_pb2.DrainRequest | None = None,
        get_drain: scheduler_pb2.GetDrain | None = None,
    ) -> scheduler_pb2.DrainProgress:
        request = scheduler_pb2.SchedulerAdminRequest(drain=drain, get_drain=get_drain)
        return _part(await self._ask(request), "drain").drain

    async def _ask(
        self, request: scheduler_pb2.SchedulerAdminRequest, *, timeout_s: float | None = None
    ) -> scheduler_pb2.SchedulerAdminReply:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            reply = await ask_who_has(
                self._bus,
                subjects.SCHEDULER_ADMIN,
                request,
                scheduler_pb2.SchedulerAdminReply,
                timeout_s=timeout_s,
                is_found=_is_answer,
            )
        except Unavailable as error:
            if error.reason == "BAD_ANSWER":
                raise Internal("the scheduler answered something else", reason="BAD_ANSWER") from None
            message = "no scheduler answers" if error.reason == "NO_RESPONDERS" else error.message
            raise Unavailable(message, reason="NO_SCHEDULER", retry_delay_s=_RETRY_DELAY_S) from None
        except DeadlineExceeded:
            message = f"the scheduler did not answer in {timeout_s:g} s; it may have acted all the same"
            raise Unavailable(message, reason="OUTCOME_UNKNOWN", retry_delay_s=_RETRY_DELAY_S) from None
        if reply.HasField("refused"):
            raise _refusal(reply.refused)
        return reply


def _is_answer(reply: scheduler_pb2.SchedulerAdminReply) -> bool:
    """Return whether no other leader has a better one."""
    return reply.refused.reason not in (OTHER_PARTITION, UNKNOWN_WORKER, UNKNOWN_REQUEST)


def _refusal(refused: scheduler_pb2.AdminRefusal) -> InferFluxError:
    retry_delay_s = _RETRY_DELAY_S if refused.code == Unavailable.code else None
    return from_code(
        refused.code, refused.message, reason=refused.reason, field=refused.field, retry_delay_s=retry_delay_s
    )


def _part(reply: scheduler_pb2.SchedulerAdminReply, name: str) -> scheduler_pb2.SchedulerAdminReply:
    """The reply, if it is the one that was asked for."""
    if reply.WhichOneof("reply") != name:
        raise Internal("the scheduler answered something else", reason="BAD_ANSWER")
    return reply
