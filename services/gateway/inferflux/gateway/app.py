"""The gateway process put together: bus, policy, tokenizers, servicers, gRPC server, probe."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc.aio

from inferflux.common.bus import Bus
from inferflux.common.calls.audit.opening import running_trail
from inferflux.common.calls.audit.writer import AuditTrail
from inferflux.common.calls.grpc_server import GrpcServer
from inferflux.common.calls.service_key import parse_service_keys
from inferflux.common.process import logs
from inferflux.common.process.child.scratch import scratch_folder
from inferflux.common.process.lifecycle import Shutdown
from inferflux.common.process.probe import DRAINING, Probe
from inferflux.common.process.tasks import Background
from inferflux.common.redis import store
from inferflux.common.tracing import Tracer, open_tracer

from .answers.cache import AnswerCache
from .grpc.server import Operators, build_server, operators
from .http.app import build_app
from .http.server import HttpServer
from .images.intake import ImageIntake
from .metrics import GatewayMetrics
from .models.models import ModelRegistry
from .models.splits import read_splits
from .policy.admission import Admission
from .policy.policy_channel import open_each, open_policy_channel
from .readiness import Readiness
from .request.embeddings import Embeddings
from .request.pipeline import Pipeline
from .request.services import Services
from .request.streams import Streams
from .settings import GatewaySettings
from .tokenizer.tokenizer_files import TokenizerFiles
from .tokenizer.tokenizers import Tokenizers
from .tokenizer.warm_up import WarmUp

if TYPE_CHECKING:
    from redis.asyncio import Redis

# After the streams have ended: for settling what they used.
_SETTLE_LIMIT_S = 3.0

log = logs.get()


async def serve(settings: GatewaySettings, shutdown: Shutdown) -> None:
    """Serve until `shutdown` is asked for; streams that run then get `drain_limit_s` to end."""
    async with AsyncExitStack() as stack:
        probe = Probe(settings.metrics_listen, role="gateway")
        stack.callback(probe.close)
        probe.set_ready("running", ok=False, detail="starting")
        tracer = open_tracer(settings, "gateway")
        stack.push_async_callback(tracer.close)
        gateway = await _open(settings, stack, tracer)
        readiness = _readiness(settings, gateway, probe)
        served = _operators(settings, gateway, probe)
        server = _grpc_server(settings, gateway, served)
        http = _http_server(settings, gateway, probe, served)
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
        probe.set_ready("running", ok=False, detail="shutting down", reason=DRAINING)
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
    """Parts that the servicers and the readiness stand on."""

    bus: Bus
    trail: AuditTrail
    admission: Admission
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
    service_key = _service_key(settings)  # Before the trail: a start that fails leaves no lines there.
    trail = await stack.enter_async_context(running_trail(settings, "gateway"))
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

    answers: AnswerCache | None = None
    if settings.answer_cache_bytes:
        wait_s = settings.answer_cache_wait_s
        answers = AnswerCache(redis, settings.answer_limits, background, metrics.answers, wait_s=wait_s)
    admission = Admission(policy_channel, service_key=service_key, timeout_s=settings.policy_timeout_s)
    services = Services.over(
        bus,
        admission,
        background,
        metrics,
        trail,
        streams=Streams(settings.max_streams, settings.max_streams_per_tenant),
        answers=answers,
    )
    reporting = Background()
    services.start(reporting)
    stack.push_async_callback(reporting.close)
    http = settings.image_client()
    if http is not None:
        stack.push_async_callback(http.aclose)
    pipeline = Pipeline(
        models,
        tokenizers,
        services,
        tracer,
        max_text_bytes=settings.max_text_bytes,
        max_resume_window_s=settings.max_resume_window_s,
        images=ImageIntake(bus, http, settings.image_limits, file_path=files.path),
        zone=settings.zone,
    )
    embeddings = Embeddings(pipeline, tokenizers, max_text_bytes=settings.max_text_bytes)
    return _Gateway(
        bus,
        trail,
        admission,
        services,
        policy_channel,
        policies or {settings.policy_address: policy_channel},
        pipeline,
        embeddings,
        tokenizers,
        models,
        redis,
    )


def _service_key(settings: GatewaySettings) -> str:
    """Return the key that is sent to policy; "" where the certificate proves this gateway."""
    keys = parse_service_keys(
        settings.service_key.get_secret_value(), needs_one=not settings.shows_certificate
    )
    return next(iter(keys), "")


def _readiness(settings: GatewaySettings, gateway: _Gateway, probe: Probe) -> Readiness:
    return Readiness(
        gateway.bus,
        gateway.policy_channel,
        gateway.trail,
        gateway.tokenizers,
        gateway.models,
        probe,
        needs_model=settings.needs_model,
    )


def _operators(settings: GatewaySettings, gateway: _Gateway, probe: Probe) -> Operators:
    return operators(
        gateway.bus,
        gateway.models,
        gateway.redis,
        gateway.services.streams,
        probe,
        gateway.trail,
        policy=gateway.policy_channel,
        policies=gateway.policies,
        on_policy_change=gateway.admission.policy_changed,
        listen=settings.listen,
    )


def _grpc_server(settings: GatewaySettings, gateway: _Gateway, served: Operators) -> GrpcServer:
    """The gRPC front, not started yet."""
    return build_server(
        gateway.pipeline,
        gateway.embeddings,
        gateway.admission.admit,
        gateway.trail,
        served,
        max_text_bytes=settings.max_text_bytes,
    )


def _http_server(settings: GatewaySettings, gateway: _Gateway, probe: Probe, served: Operators) -> HttpServer:
    """The HTTP front, not started yet."""
    app = build_app(
        gateway.pipeline,
        gateway.embeddings,
        gateway.models,
        gateway.admission.admit,
        gateway.services.accounts.metrics,
        probe,
        gateway.trail,
        served.methods,
        cors_origins=settings.cors_origins,
    )
    return HttpServer(app, trusted_proxies=settings.trusted_proxies)
