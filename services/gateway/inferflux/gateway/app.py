"""The gateway process put together: bus, policy, tokenizers, servicers, gRPC server, probe."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc.aio

from inferflux.common.bus import Bus
from inferflux.common.calls.audit.opening import running_trail
from inferflux.common.calls.grpc_options import connection_age, receive_limit
from inferflux.common.calls.grpc_server import GrpcServer, build_server
from inferflux.common.calls.service_key import parse_service_keys
from inferflux.common.process import logs
from inferflux.common.process.child.scratch import scratch_folder
from inferflux.common.process.lifecycle import Shutdown
from inferflux.common.process.probe import Probe
from inferflux.common.process.tasks import Background
from inferflux.common.redis import store
from inferflux.common.tracing import Tracer, open_tracer
from inferflux.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    embedding_pb2_grpc,
    inference_pb2_grpc,
    model_pb2_grpc,
)

from .answers.cache import AnswerCache
from .grpc import policy_servicer
from .grpc.admin_servicer import AdminServicer
from .grpc.cluster_servicer import ClusterServicer
from .grpc.embedding_servicer import EmbeddingServicer
from .grpc.model_servicer import ModelServicer
from .grpc.rules import MODEL_CHANGES, SERVICE_NAMES, rules
from .grpc.servicer import InferenceServicer
from .http.app import build_app
from .http.server import HttpServer
from .images.intake import ImageIntake
from .metrics import GatewayMetrics
from .models.models import ModelRegistry
from .models.splits import read_splits
from .operator.admin_audit import ChangeAudit
from .operator.admin_methods import AdminMethod, methods_of
from .operator.cache_clearing import CacheClearing
from .operator.scheduler_admin import SchedulerAdmin
from .policy.admission import Admission
from .policy.ledger import Ledger
from .policy.policy_channel import open_each, open_policy_channel
from .policy.reservations import Reservations
from .readiness import Readiness
from .request.embeddings import Embeddings
from .request.generation import Services
from .request.pipeline import Pipeline
from .request.streams import Streams
from .request.submit import Submitter
from .settings import GatewaySettings
from .stream.canceller import Canceller
from .stream.readers import ReaderReports
from .stream.stream_guards import StreamGuards
from .tokenizer.tokenizer_files import TokenizerFiles
from .tokenizer.tokenizers import Tokenizers
from .tokenizer.warm_up import WarmUp

if TYPE_CHECKING:
    from redis.asyncio import Redis

# Longest wait for one answer of the scheduler to an administrator.
_ADMIN_TIMEOUT_S = 3.0
# After the streams have ended: for settling what they used.
_SETTLE_LIMIT_S = 3.0

log = logs.get()

# Calls to one method that are taken in a round. Admission has them wait, the most urgent first.
_TAKEN_AT_ONCE = 256


async def serve(settings: GatewaySettings, shutdown: Shutdown) -> None:
    """Serve until `shutdown` is asked for; streams that run then get `drain_limit_s` to end."""
    async with AsyncExitStack() as stack:
        probe = Probe(settings.metrics_listen)
        stack.callback(probe.close)
        probe.set_ready("running", ok=False, detail="starting")
        tracer = open_tracer(settings, "gateway")
        stack.push_async_callback(tracer.close)
        gateway = await _open(settings, stack, tracer)
        operators = _operators(settings, gateway, probe)
        readiness = _readiness(settings, gateway, probe)
        server = _build_server(settings, gateway, operators)
        http = _http_server(settings, gateway, probe, operators)
        stack.push_async_callback(http.stop, 1.0)
        tls = settings.server_tls
        if settings.http_listen:
            await http.start(settings.http_listen, variable="INFERFLUX_GATEWAY_HTTP_LISTEN", tls=tls)
        port = await server.start(
            settings.listen,
            variable="INFERFLUX_GATEWAY_LISTEN",
            tls=tls,
            has_reflection=settings.has_reflection(tls),
        )
        log.info("serving", port=port, metrics_port=probe.port, http_port=http.port)

        probe.set_ready("running", ok=True)
        await readiness.watch(server, shutdown)
        probe.set_ready("running", ok=False, detail="shutting down")
        server.set_serving(False)
        streams = gateway.services.streams
        log.info("draining", streams=len(streams))
        draining = asyncio.create_task(streams.drain(settings.drain_limit_s))
        # Clients that do not look at health are sent away. Their streams go on until they have drained.
        if not await streams.end_within(settings.drain_notice_s):
            await server.leave()
        await draining
        await server.stop(1.0)


@dataclass(frozen=True)
class _Gateway:
    """What the servicers and the readiness stand on."""

    services: Services
    policy_channel: grpc.aio.Channel
    policies: Mapping[str, grpc.aio.Channel]
    pipeline: Pipeline
    embeddings: Embeddings
    tokenizers: Tokenizers
    models: ModelRegistry
    redis: Redis


async def _open(settings: GatewaySettings, stack: AsyncExitStack, tracer: Tracer) -> _Gateway:
    """Connect, and start the tasks beside the servicers; `stack` ends all of it, the last one first."""
    trail = await stack.enter_async_context(running_trail(settings, "gateway"))
    service_key = _service_key(settings)
    bus = await Bus.connect(settings.nats_url, name="gateway", watches_writes=True, tls=settings.client_tls)
    stack.push_async_callback(bus.close)
    await bus.ensure_streams(settings.stream_limits)
    policy_tls = None if settings.tls_ca is None else settings.client_tls
    policy_channel = open_policy_channel(settings.policy_address, policy_tls)
    policies = open_each(settings.policy_address)
    for channel in (policy_channel, *policies.values()):
        stack.push_async_callback(channel.close)
    redis = store.connect(settings.redis_url, tls=settings.client_tls)
    stack.push_async_callback(redis.aclose)
    background = Background()
    stack.push_async_callback(background.finish, _SETTLE_LIMIT_S)

    files = TokenizerFiles(bus, stack.enter_context(scratch_folder("inferflux-gateway-")))
    tokenizers = Tokenizers(settings.tokenizer_limits, files.path)
    stack.push_async_callback(tokenizers.close)
    metrics = GatewayMetrics()
    models = ModelRegistry(
        bus,
        metrics.bad,
        on_model=WarmUp(tokenizers, background).on_model,
        splits=read_splits(settings.config) if settings.config is not None else None,
        takes_any_name=settings.any_model,
    )
    await models.start()
    stack.push_async_callback(models.close)

    reports = ReaderReports(bus, timeout_s=settings.cancel_timeout_s)
    reporting = Background()
    reporting.start(reports.run())
    stack.push_async_callback(reporting.close)
    answers: AnswerCache | None = None
    if settings.answer_cache_bytes:
        wait_s = settings.answer_cache_wait_s
        answers = AnswerCache(redis, settings.answer_limits, background, metrics.answers, wait_s=wait_s)
        reporting.start(answers.run())
    admission = Admission(policy_channel, service_key=service_key, timeout_s=settings.policy_timeout_s)
    reservations = Reservations(admission)
    reporting.start(reservations.run())
    services = Services(
        bus=bus,
        submitter=Submitter(bus),
        canceller=Canceller(bus, background, timeout_s=settings.cancel_timeout_s),
        reader_reports=reports,
        reservations=reservations,
        guards=StreamGuards(admission),
        ledger=Ledger(admission, background, trail),
        metrics=metrics,
        background=background,
        streams=Streams(settings.max_streams, settings.max_streams_per_tenant),
        relay_limits=settings.relay_limits,
        tracer=tracer,
        trail=trail,
        answers=answers,
    )
    http = settings.image_client()
    if http is not None:
        stack.push_async_callback(http.aclose)
    pipeline = Pipeline(
        admission,
        models,
        tokenizers,
        services,
        max_text_bytes=settings.max_text_bytes,
        max_resume_window_s=settings.max_resume_window_s,
        images=ImageIntake(bus, http, settings.image_limits, file_path=files.path),
        zone=settings.zone,
    )
    embeddings = Embeddings(pipeline, tokenizers, max_text_bytes=settings.max_text_bytes)
    policies = policies or {settings.policy_address: policy_channel}
    return _Gateway(services, policy_channel, policies, pipeline, embeddings, tokenizers, models, redis)


def _service_key(settings: GatewaySettings) -> str:
    """What is sent to policy; "" where the certificate proves this gateway."""
    keys = parse_service_keys(
        settings.service_key.get_secret_value(), needs_one=not settings.shows_certificate
    )
    return next(iter(keys), "")


def _readiness(settings: GatewaySettings, gateway: _Gateway, probe: Probe) -> Readiness:
    return Readiness(
        gateway.services.bus,
        gateway.policy_channel,
        gateway.services.trail,
        gateway.tokenizers,
        gateway.models,
        probe,
        needs_model=settings.needs_model,
    )


@dataclass(frozen=True)
class _Operators:
    """What serves operators, over gRPC and HTTP alike."""

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


def _operators(settings: GatewaySettings, gateway: _Gateway, probe: Probe) -> _Operators:
    cluster = ClusterServicer(
        gateway.services.bus,
        gateway.policies,
        gateway.services.streams,
        probe,
        gateway.models,
        listen=settings.listen,
    )
    scheduler = SchedulerAdmin(gateway.services.bus, timeout_s=_ADMIN_TIMEOUT_S)
    audit = ChangeAudit(gateway.services.trail)
    admin = AdminServicer(scheduler, CacheClearing(scheduler, gateway.models, gateway.redis), audit)
    models = ModelServicer(gateway.models, scheduler, audit)
    return _Operators(cluster, admin, models, policy_servicer.methods(gateway.policy_channel))


def _build_server(settings: GatewaySettings, gateway: _Gateway, operators: _Operators) -> GrpcServer:
    """The gRPC server with every servicer, not started yet."""
    own_rules = rules(settings.max_text_bytes)
    server = build_server(
        own_rules,
        gateway.pipeline.admit,
        gateway.services.trail,
        options=[
            receive_limit(max(rule.max_body_bytes for rule in own_rules.values())),
            *connection_age(settings.connection_age_s),
        ],
        taken_at_once=_TAKEN_AT_ONCE,
    )
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(
        InferenceServicer(gateway.pipeline), server.server
    )
    embedding_pb2_grpc.add_EmbeddingServiceServicer_to_server(
        EmbeddingServicer(gateway.embeddings), server.server
    )
    model_pb2_grpc.add_ModelServiceServicer_to_server(operators.models, server.server)
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(operators.cluster, server.server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(operators.admin, server.server)
    policy_servicer.add_to(server.server, operators.policy)
    for name in SERVICE_NAMES:
        server.add(name)
    return server


def _http_server(
    settings: GatewaySettings, gateway: _Gateway, probe: Probe, operators: _Operators
) -> HttpServer:
    """The HTTP front, not started yet."""
    app = build_app(
        gateway.pipeline,
        gateway.embeddings,
        gateway.models,
        gateway.services.metrics,
        probe,
        gateway.services.trail,
        operators.methods,
        cors_origins=settings.cors_origins,
        send_limit_s=settings.http_send_limit_s,
    )
    return HttpServer(app, trusted_proxies=settings.trusted_proxies)
