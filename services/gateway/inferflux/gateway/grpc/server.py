"""The gRPC server: every service's servicer, and its rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc.aio

from inferflux.common.bus import Bus
from inferflux.common.calls.audit.writer import AuditTrail
from inferflux.common.calls.grpc_interceptor import Admit
from inferflux.common.calls.grpc_options import connection_age, receive_limit
from inferflux.common.calls.grpc_server import GrpcServer
from inferflux.common.calls.grpc_server import build_server as build_bare_server
from inferflux.common.process.probe import Probe
from inferflux.gateway.models.models import ModelRegistry
from inferflux.gateway.operator.admin_audit import ChangeAudit
from inferflux.gateway.operator.admin_methods import AdminMethod, methods_of
from inferflux.gateway.operator.cache_clearing import CacheClearing
from inferflux.gateway.operator.scheduler_admin import SchedulerAdmin
from inferflux.gateway.request.embeddings import Embeddings
from inferflux.gateway.request.pipeline import Pipeline
from inferflux.gateway.request.streams import Streams
from inferflux.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    embedding_pb2_grpc,
    inference_pb2_grpc,
    model_pb2_grpc,
)

from . import policy_servicer
from .admin_servicer import AdminServicer
from .cluster_servicer import ClusterServicer
from .model_servicer import ModelServicer
from .rules import MODEL_CHANGES, SERVICE_NAMES, rules
from .servicer import EmbeddingServicer, InferenceServicer

if TYPE_CHECKING:
    from redis.asyncio import Redis

# Longest wait for one answer of the scheduler to an administrator.
_ADMIN_TIMEOUT_S = 3.0
# Calls to one method that are taken in a round. Admission has them wait, the most urgent first.
_TAKEN_AT_ONCE = 256
# A client is asked for a new gRPC connection, which may be to another gateway, when one is as old as this, a
# tenth more or less. Calls that run go on.
_CONNECTION_AGE_S = 600.0


@dataclass(frozen=True)
class Operators:
    """Servicers for operators, over gRPC and HTTP."""

    cluster: ClusterServicer
    admin: AdminServicer
    models: ModelServicer
    policy: Sequence[AdminMethod]

    @property
    def methods(self) -> Sequence[AdminMethod]:
        cluster = methods_of(cluster_pb2.DESCRIPTOR.services_by_name["ClusterService"], self.cluster)
        admin = methods_of(admin_pb2.DESCRIPTOR.services_by_name["AdminService"], self.admin)
        changes = [AdminMethod.of(method, getattr(self.models, method.name)) for method in MODEL_CHANGES]
        return [*cluster, *admin, *changes, *self.policy]


def operators(
    bus: Bus,
    models: ModelRegistry,
    redis: Redis,
    streams: Streams,
    probe: Probe,
    trail: AuditTrail,
    *,
    policy: grpc.aio.Channel,
    policies: Mapping[str, grpc.aio.Channel],
    on_policy_change: Callable[[], None],
    listen: str,
) -> Operators:
    """The servicers for operators.

    Args:
        policy: takes what administrators change.
        policies: every policy service by its address, to ask for its health.
        on_policy_change: called after an administrator's call that was passed on to policy.
        listen: where this gateway does, for its place.
    """
    scheduler, audit = SchedulerAdmin(bus, timeout_s=_ADMIN_TIMEOUT_S), ChangeAudit(trail)
    return Operators(
        ClusterServicer(bus, policies, streams, probe, models, listen=listen),
        AdminServicer(scheduler, CacheClearing(scheduler, models, redis), audit),
        ModelServicer(models, scheduler, audit),
        policy_servicer.methods(policy, on_policy_change),
    )


def build_server(
    pipeline: Pipeline,
    embeddings: Embeddings,
    admit: Admit,
    trail: AuditTrail,
    operators: Operators,
    *,
    max_text_bytes: int,
) -> GrpcServer:
    """The server with every servicer, not started yet."""
    own_rules = rules(max_text_bytes)
    largest = max(rule.max_body_bytes for rule in own_rules.values())
    options = [receive_limit(largest), connection_age(_CONNECTION_AGE_S)]
    server = build_bare_server(own_rules, admit, trail, options=options, taken_at_once=_TAKEN_AT_ONCE)
    inference = InferenceServicer(pipeline)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, server.server)
    embedding_pb2_grpc.add_EmbeddingServiceServicer_to_server(EmbeddingServicer(embeddings), server.server)
    model_pb2_grpc.add_ModelServiceServicer_to_server(operators.models, server.server)
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(operators.cluster, server.server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(operators.admin, server.server)
    policy_servicer.add_to(server.server, operators.policy)
    for name in SERVICE_NAMES:
        server.add(name)
    return server
