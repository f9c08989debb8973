"""ClusterService: what an operator asks about the whole. Needs the scope `status`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferflux.common.bus import Bus
from inferflux.common.bus.scheduler_status import ask_schedulers, together
from inferflux.common.contract.address import place_of
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, Unavailable
from inferflux.common.contract.pages import check_page_size
from inferflux.common.process.probe import Probe
from inferflux.gateway.models.models import ModelRegistry
from inferflux.gateway.operator.status_pages import Place, cut, parse_token
from inferflux.gateway.request.streams import Streams
from inferflux.v1 import cluster_pb2, cluster_pb2_grpc, scheduler_pb2

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

_ASK_TIMEOUT_S = 1.0


class ClusterServicer(cluster_pb2_grpc.ClusterServiceServicer):
    """Asks all services at once, and waits a second at most. Gateway and scheduler are as ready as
    their /readyz says.

    Redis is seen through policy, which serves health as NOT_SERVING while its store is away.
    """

    def __init__(
        self,
        bus: Bus,
        policies: Mapping[str, grpc.aio.Channel],
        streams: Streams,
        probe: Probe,
        models: ModelRegistry,
        *,
        listen: str,
    ) -> None:
        self._bus = bus
        self._policies = {each: health_pb2_grpc.HealthStub(channel) for each, channel in policies.items()}
        self._streams = streams
        self._probe = probe
        self._models = models
        self._place = place_of(listen, socket.gethostname())

    async def GetStatus(
        self, request: cluster_pb2.GetStatusRequest, context: Context
    ) -> cluster_pb2.GetStatusResponse:
        check_page_size(request.page_size)
        place = parse_token(request.page_token)
        (scheduler, statuses), nats, policies = await asyncio.gather(
            self._ask_scheduler(request.page_size, place),
            self._ask_nats(),
            asyncio.gather(*map(self._ask_policy, self._policies)),
        )
        # What one of them reaches is there.
        redis = max((redis for _, redis in policies), key=lambda each: each.is_ready)
        response = cluster_pb2.GetStatusResponse(
            services=[self._gateway(), *(policy for policy, _ in policies), scheduler, nats, redis],
            scheduler=together(statuses) if statuses else None,
            partitions=map(_without_workers, statuses) if len(statuses) > 1 else (),
            hosts=self._models.host_summaries(),
        )
        cut(response, place, request.page_size)
        return response

    def _gateway(self) -> cluster_pb2.ServiceStatus:
        state = self._probe.missing or f"{len(self._streams)} streams"
        return _status("gateway", self._probe.is_ready, f"{self._place}, {state}")

    async def _ask_nats(self) -> cluster_pb2.ServiceStatus:
        try:
            await self._bus.check_connection(_ASK_TIMEOUT_S)
        except Unavailable as error:
            return _status("nats", False, error.message)
        if problem := self._bus.write_problem:
            return _status("nats", False, f"JetStream does not write: {problem}")
        return _status("nats", True, "connected")

    async def _ask_scheduler(
        self, page_size: int, place: Place
    ) -> tuple[cluster_pb2.ServiceStatus, list[scheduler_pb2.SchedulerStatus]]:
        try:
            statuses = await ask_schedulers(
                self._bus,
                timeout_s=_ASK_TIMEOUT_S,
                # One more than are told: whether others follow.
                page_size=page_size and page_size + 1,
                after_worker_id=place.worker_id,
            )
        except (DeadlineExceeded, Unavailable) as error:
            detail = "answers something else" if error.reason == "BAD_ANSWER" else "does not answer"
            return _status("scheduler", False, detail), []
        except InferFluxError as error:
            return _status("scheduler", False, error.message), []
        status = together(statuses)
        n = status.worker_totals.workers
        workers = "1 worker" if n == 1 else f"{n} workers"
        detail = f"{workers}, {status.running} running, {status.queued} queued"
        if len(statuses) > 1:
            detail += f", {len(statuses)} partitions"
        if status.not_ready:
            return _status("scheduler", False, f"{detail}; {status.not_ready}"), statuses
        return _status("scheduler", True, detail), statuses

    async def _ask_policy(self, address: str) -> tuple[cluster_pb2.ServiceStatus, cluster_pb2.ServiceStatus]:
        """Status of a policy process, and of Redis as that process sees it."""
        try:
            answer = await self._policies[address].Check(
                health_pb2.HealthCheckRequest(), timeout=_ASK_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            policy = _status("policy", False, f"{address}: {error.code().name}")
            return policy, _status("redis", False, "unknown: policy does not answer")
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return _status("policy", True, address), _status("redis", True, "policy reaches it")
        policy = _status("policy", False, f"{address}: refuses every call")
        return policy, _status("redis", False, "policy cannot reach it")


def _status(name: str, is_ready: bool, detail: str) -> cluster_pb2.ServiceStatus:
    return cluster_pb2.ServiceStatus(name=name, is_ready=is_ready, detail=detail)


def _without_workers(status: scheduler_pb2.SchedulerStatus) -> scheduler_pb2.SchedulerStatus:
    copy = scheduler_pb2.SchedulerStatus()
    copy.CopyFrom(status)
    del copy.workers[:]
    return copy
