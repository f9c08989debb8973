"""The policy process put together: store, limiter, servicer, gRPC server, probe, and tasks beside them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from prometheus_client import REGISTRY, CollectorRegistry

from inferflux.common.calls.audit.opening import running_trail
from inferflux.common.calls.audit.writer import AuditTrail
from inferflux.common.calls.grpc_options import receive_limit
from inferflux.common.calls.grpc_server import GrpcServer, build_server
from inferflux.common.calls.service_key import ServiceKeys, parse_service_keys
from inferflux.common.contract.callers.policy_methods import SERVICE_NAME
from inferflux.common.contract.errors import Unavailable
from inferflux.common.http.http_proxies import Proxies
from inferflux.common.process import logs
from inferflux.common.process.lifecycle import Shutdown
from inferflux.common.process.probe import DRAINING, Probe
from inferflux.common.process.tasks import Background, is_set_within
from inferflux.common.redis import store
from inferflux.v1 import policy_pb2_grpc

from .admin_servicer import admin_methods
from .bootstrap import Bootstrap
from .callers import Callers
from .decide.decisions.chain import Decisions
from .decide.decisions.opening import open_decisions
from .decide.guardrails.prompts import PromptGuard
from .decide.guardrails.sets import GuardrailSets
from .decide.oidc.token_admission import TokenAdmission
from .last_used import LastUsed
from .metrics import PolicyMetrics
from .rules import MAX_MESSAGE_BYTES, RULES
from .servicer import Parts, PolicyServicer
from .settings import PolicySettings
from .storage.guarded import StoreGuard
from .storage.interface import Storage
from .storage.limiter import Limiter
from .storage.opening import storage_of
from .storage.usage_store import UsageStore

if TYPE_CHECKING:
    from redis.asyncio import Redis

# Between two writings of when keys were last used.
_LAST_USED_EVERY_S = 5.0
# Between two looks whether Redis and the storage answer: readiness is a second late at most.
_STORE_CHECK_INTERVAL_S = 1.0
# What a gateway reserved is given back when it has not renewed it for this long. It renews it three times as
# often: one that comes late, as on a busy machine, costs nothing.
_LEASE_S = 15.0
# A lease that ran out is noticed within this part of a lease.
_SWEEPS_PER_LEASE = 5

log = logs.get()


async def serve(settings: PolicySettings, shutdown: Shutdown, registry: CollectorRegistry = REGISTRY) -> None:
    """Serve until `shutdown` is asked for; calls in flight then get `drain_limit_s` to end."""
    certificates = settings.service_certificates
    keys = parse_service_keys(settings.service_key.get_secret_value(), needs_one=not certificates)
    service_keys = ServiceKeys(keys, certificates=certificates)
    async with running_trail(settings, "policy") as trail:
        await _serve(settings, service_keys, shutdown, trail, registry)


async def _serve(
    settings: PolicySettings,
    service_keys: ServiceKeys,
    shutdown: Shutdown,
    trail: AuditTrail,
    registry: CollectorRegistry,
) -> None:
    tls = settings.server_tls
    http = settings.http_client()
    issuers = settings.http_client(Proxies.of_environment())
    opened = open_decisions(settings, http)
    redis = store.connect(settings.redis_url, tls=settings.client_tls)
    metrics = PolicyMetrics(registry)
    guard = StoreGuard(timeout_s=settings.store_timeout_s)
    storage = storage_of(settings, redis, guard, timeout_s=settings.store_timeout_s, now_ms=_now_ms)
    tokens = TokenAdmission(settings.oidc_issuers, issuers, settings.key_times, metrics)
    last_used = LastUsed(storage.keys)
    parts = _parts(
        settings, redis, guard, storage, service_keys, trail, metrics, tokens, opened.decisions, last_used
    )
    probe = Probe(settings.metrics_listen, role="policy", registry=registry)
    probe.set_ready("store", ok=False, detail="not asked yet")
    servicer = PolicyServicer(
        parts,
        settled_memory_s=settings.settled_memory_s,
        default_max_priority=settings.default_max_priority,
        default_cache_scope=settings.cache_scope,
    )
    server = build_server(RULES, parts.callers.admit_call, trail, options=[receive_limit(MAX_MESSAGE_BYTES)])
    methods = cast("policy_pb2_grpc.PolicyServiceServicer", servicer)
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(methods, server.server)
    server.add(SERVICE_NAME)
    background = Background()
    try:
        await storage.open()
        port = await server.start(
            settings.listen,
            variable="INFERFLUX_POLICY_LISTEN",
            tls=tls,
            has_reflection=settings.has_reflection(tls),
        )
        log.info("serving", port=port, metrics_port=probe.port)
        background.start(_sweep(parts.limiter, metrics, shutdown, every_s=_LEASE_S / _SWEEPS_PER_LEASE))
        background.start(_write_last_used(last_used, shutdown))
        background.start(tokens.run_until(shutdown.requested))
        if opened.work is not None:
            background.start(opened.work(shutdown))
        secret = settings.bootstrap_key.get_secret_value()
        bootstrap = Bootstrap(storage.keys, secret, path=settings.first_key_path)
        watch = StoreWatch(storage, parts.limiter, bootstrap, server, probe, metrics)
        await watch.run_until(shutdown, interval_s=_STORE_CHECK_INTERVAL_S)
        probe.set_ready("running", ok=False, detail="shutting down", reason=DRAINING)
        await server.stop(settings.drain_limit_s)
        await last_used.write()
    finally:
        await background.close()
        probe.close()
        await tokens.close()
        await storage.aclose()
        await redis.aclose()
        await http.aclose()
        await issuers.aclose()


def _parts(
    settings: PolicySettings,
    redis: Redis,
    guard: StoreGuard,
    storage: Storage,
    service_keys: ServiceKeys,
    trail: AuditTrail,
    metrics: PolicyMetrics,
    tokens: TokenAdmission,
    decisions: Decisions | None,
    last_used: LastUsed,
) -> Parts:
    limiter = Limiter(
        redis,
        guard,
        lease_s=_LEASE_S,
        remember_s=settings.settled_memory_s,
        rules=storage.rate_limits,
    )
    sets = GuardrailSets(storage.guardrails)
    prompts = PromptGuard(sets, storage.guardrails)
    usage = UsageStore(redis, timeout_s=settings.store_timeout_s, guard=guard)
    admin = admin_methods(
        storage,
        limiter,
        sets,
        prompts,
        usage,
        last_used,
        trail,
        default_max_priority=settings.default_max_priority,
        default_cache_scope=settings.cache_scope,
        now_ms=_now_ms,
    )
    callers = Callers(storage.keys, tokens, service_keys, last_used, decisions)
    return Parts(callers, usage, limiter, prompts, admin, metrics, decisions)


def _now_ms() -> int:
    return int(time.time() * 1000)


async def _sweep(limiter: Limiter, metrics: PolicyMetrics, shutdown: Shutdown, *, every_s: float) -> None:
    """Give back, again and again, what gateways that are gone had reserved."""
    while not await is_set_within(shutdown.requested, every_s):
        try:
            expired = await limiter.sweep()
        except Unavailable as error:
            log.debug("leases are not looked after", why=error.in_full)
            continue
        if expired:
            metrics.expired.inc(expired)
            log.info("reservations of a gateway that is gone were given back", count=expired)


async def _write_last_used(last_used: LastUsed, shutdown: Shutdown) -> None:
    while not await is_set_within(shutdown.requested, _LAST_USED_EVERY_S):
        await last_used.write()


class StoreWatch:
    """Looks at the storage and Redis again and again: readiness follows, and a fresh storage gets its key.

    The process serves whether they answer or not: calls are refused while they do not, and nothing has to
    be restarted when they do again.
    """

    def __init__(
        self,
        storage: Storage,
        limiter: Limiter,
        bootstrap: Bootstrap,
        server: GrpcServer,
        probe: Probe,
        metrics: PolicyMetrics,
    ) -> None:
        self._storage = storage
        self._limiter = limiter
        self._bootstrap = bootstrap
        self._server = server
        self._probe = probe
        self._metrics = metrics
        self._was_up: bool | None = None

    async def run_until(self, shutdown: Shutdown, *, interval_s: float) -> None:
        is_ending = shutdown.requested.is_set()
        while not is_ending:
            try:
                await self._storage.check()
                await self._limiter.check()
                await self._bootstrap.ensure()
                self._note(is_up=True)
            except Unavailable as error:
                self._note(is_up=False, why=error.in_full)
            is_ending = await is_set_within(shutdown.requested, interval_s)

    def _note(self, *, is_up: bool, why: str = "") -> None:
        self._probe.set_ready("store", ok=is_up, detail=why)
        self._metrics.store_up.set(is_up)
        if is_up == self._was_up:
            return
        self._was_up = is_up
        self._server.set_serving(is_up)
        if is_up:
            log.info("the policy store answers")
        else:
            log.warning("the policy store does not answer: every call is refused", why=why)
