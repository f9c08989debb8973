"""Readiness of the gateway, and what is wrong: asked of what it stands on, again and again."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferflux.common.bus import Bus
from inferflux.common.bus.scheduler_status import ask_schedulers, small_pools, together
from inferflux.common.calls.audit.writer import AuditTrail
from inferflux.common.calls.grpc_server import GrpcServer
from inferflux.common.contract.errors import InferFluxError
from inferflux.common.process import logs
from inferflux.common.process.lifecycle import Shutdown
from inferflux.common.process.probe import NO_MODEL, Probe
from inferflux.common.process.tasks import is_set_within

from .grpc.rules import INFERENCE, SERVICE_NAMES
from .models.model_health import ModelHealth
from .models.models import ModelRegistry
from .tokenizer.tokenizers import Tokenizers

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERVAL_S = 0.5
_ASK_LIMIT_S = 1.0
# Between two questions to the scheduler.
_SCHEDULER_INTERVAL_S = 2.0
# Conditions of the service that gives answers alone. Without a model the others serve: they have one loaded.
_FOR_ANSWERS = ("models",)

log = logs.get()


class Readiness:
    """Names the gateway's conditions, and what is wrong while they hold.

    Args:
        needs_model: whether the gateway is ready only while a request could be served.
    """

    def __init__(
        self,
        bus: Bus,
        policy_channel: grpc.aio.Channel,
        trail: AuditTrail,
        tokenizers: Tokenizers,
        models: ModelRegistry,
        probe: Probe,
        *,
        needs_model: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._policy = health_pb2_grpc.HealthStub(policy_channel)
        self._trail = trail
        self._tokenizers = tokenizers
        self._models = models
        self._probe = probe
        self._needs_model = needs_model
        self._clock = clock
        self._health = ModelHealth()
        self._scheduler_asked_s = float("-inf")
        for part in ("nats", "queue", "policy", *(_FOR_ANSWERS if needs_model else ())):
            probe.set_ready(part, ok=False, detail="not asked yet")

    async def watch(self, server: GrpcServer, shutdown: Shutdown) -> None:
        """Have the probe and gRPC's health follow, until the shutdown."""
        said: tuple[bool, bool] | None = None
        is_ending = shutdown.requested.is_set()
        while not is_ending:
            await self._look()
            serves = self._probe.is_ready, self._probe.are_met(but=_FOR_ANSWERS)
            if serves != said:
                said = serves
                server.set_serving(
                    serves[0], of={name: serves[1] for name in SERVICE_NAMES if name != INFERENCE}
                )
                log.info("ready" if serves[0] else "not ready", missing=self._probe.missing)
            is_ending = await is_set_within(shutdown.requested, _INTERVAL_S)

    async def _look(self) -> None:
        probe, bus = self._probe, self._bus
        policy, _ = await asyncio.gather(self._ask_policy(), self._look_at_scheduler())
        probe.set_ready("policy", ok=not policy, detail=policy)
        probe.set_ready("nats", ok=bus.is_connected, detail="" if bus.is_connected else "connection lost")
        problem, audit = bus.write_problem, self._trail.problem
        # Strangers read details: they are not told of files of this machine or another.
        probe.set_ready("queue", not problem, "JetStream does not write" if problem else "", why=problem)
        probe.set_ready("audit", self._trail.takes_calls, "it cannot be written" if audit else "", why=audit)
        no_tokenizers = self._tokenizers.revive()
        probe.set_ready("tokenizers", ok=not no_tokenizers, detail=no_tokenizers)
        self._look_at_models()

    def _look_at_models(self) -> None:
        now = self._clock()
        mixed = self._health.mixed
        self._health.take(self._models.tally(), now)
        if self._health.mixed and self._health.mixed != mixed:
            log.warning("hosts have different files under one name", models=self._health.mixed)
        missing = self._health.why_not_ready(now)
        if self._needs_model:
            self._probe.set_ready("models", ok=not missing, detail=missing, reason=NO_MODEL)
        # A condition that does not hold is told already.
        is_told = self._needs_model and missing
        reason = NO_MODEL if missing else ""
        self._probe.set_warning("models", "" if is_told else self._health.warning, reason=reason)

    async def _look_at_scheduler(self) -> None:
        if self._clock() - self._scheduler_asked_s < _SCHEDULER_INTERVAL_S:
            return
        self._scheduler_asked_s = self._clock()
        try:
            statuses = await ask_schedulers(self._bus, timeout_s=_ASK_LIMIT_S, without_workers=True)
        except InferFluxError:
            self._probe.set_warning("scheduler", "it does not answer: requests wait")
        else:
            whole = together(statuses)
            wrong = "it is not ready: requests wait" if whole.not_ready else ""
            self._probe.set_warning("scheduler", wrong)
            small = small_pools(whole)
            detail = "; ".join(f"{reason}: {count}" for reason, count in small.items())
            self._probe.set_warning("pools", detail, reason="; ".join(small))

    async def _ask_policy(self) -> str:
        """Why policy is not ready; "" if it is."""
        try:
            answer = await self._policy.Check(health_pb2.HealthCheckRequest(), timeout=_ASK_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            return f"does not answer: {error.code().name}"
        return "" if answer.status == health_pb2.HealthCheckResponse.SERVING else "cannot reach its store"
