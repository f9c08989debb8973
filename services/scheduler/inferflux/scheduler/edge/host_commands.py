"""Commands to hosts of models, by request and reply."""

from __future__ import annotations

from inferflux.common.bus import Bus
from inferflux.common.bus.ask import ask
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import (
    DeadlineExceeded,
    InferFluxError,
    InvalidArgument,
    Unavailable,
    from_code,
)
from inferflux.common.contract.messages.hosts import check_job, check_model
from inferflux.common.process import logs
from inferflux.scheduler.core.types.actions import CommandHost
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.v1 import host_pb2, model_pb2

from .guard import GuardedCore

# Longest wait for a host, which answers when it has begun. A file is read and tried before it is known.
_ANSWER_LIMIT_S = 5.0
_FILE_LIMIT_S = 70.0

log = logs.get("scheduler.hosts")


async def command_host(bus: Bus, host_id: str, command: host_pb2.HostCommand) -> host_pb2.HostedModel:
    """Have a host do something; returns the model as it is then.

    Raises:
        InferFluxError: as the host says why not.
        Unavailable: the host is not there, or did not say what it did (OUTCOME_UNKNOWN).
    """
    reply = await _reply(bus, host_id, command)
    try:
        check_model(reply.model)
    except InvalidArgument:
        raise Unavailable(f"host {host_id} answered something else", reason="BAD_ANSWER") from None
    return reply.model


async def command_store(bus: Bus, host_id: str, command: host_pb2.HostCommand) -> model_pb2.StoreJob:
    """Have a host do something with its store; returns what it has begun. Raises as `command_host`."""
    reply = await _reply(bus, host_id, command)
    try:
        check_job(reply.job)
    except InvalidArgument:
        raise Unavailable(f"host {host_id} answered something else", reason="BAD_ANSWER") from None
    return reply.job


async def _reply(bus: Bus, host_id: str, command: host_pb2.HostCommand) -> host_pb2.HostReply:
    is_long = command.WhichOneof("command") in ("register", "register_adapter", "remove")
    limit_s = _FILE_LIMIT_S if is_long else _ANSWER_LIMIT_S
    try:
        reply = await ask(bus, subjects.host_command(host_id), command, host_pb2.HostReply, timeout_s=limit_s)
    except DeadlineExceeded:
        message = f"host {host_id} did not answer in {limit_s:g} s; it may have acted all the same"
        raise Unavailable(message, reason="OUTCOME_UNKNOWN") from None
    if reply.code:
        raise from_code(reply.code, reply.message, reason=reply.reason, field=reply.field)
    return reply


async def perform(bus: Bus, action: CommandHost, guard: GuardedCore, metrics: SchedulerMetrics) -> None:
    """Do what the core decided of a host, and tell it what came of it."""
    about = {"host_id": action.host_id, "model": action.model, "why": action.why}
    answer: host_pb2.HostedModel | InferFluxError
    try:
        answer = await command_host(bus, action.host_id, action.command)
    except InferFluxError as error:
        answer = error
        log.warning(
            f"a host did not {action.kind} a model", reason=error.reason, error=error.message, **about
        )
    else:
        log.info(f"a host is to {action.kind} a model", **about)
    metrics.count_host_command(action, is_done=not isinstance(answer, InferFluxError))
    guard.decide(
        "an answer of a host",
        lambda core, now: core.on_host_answer(action.host_id, action.model, answer, now),
    )
