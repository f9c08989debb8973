"""The policy process put together: store, servicer, gRPC server, probe, and the watch over the store."""

from __future__ import annotations

from inferflux.common import logs, store
from inferflux.common.audit.opening import running_trail
from inferflux.common.audit.writer import AuditTrail
from inferflux.common.errors import Unavailable
from inferflux.common.grpc_options import receive_limit
from inferflux.common.grpc_server import GrpcServer, build_server
from inferflux.common.lifecycle import Shutdown
from inferflux.common.probe import Probe
from inferflux.common.tasks import is_set_within
from inferflux.v1 import policy_pb2_grpc

from .bootstrap import Bootstrap
from .metrics import PolicyMetrics
from .rules import MAX_BODY_BYTES, RULES, SERVICE_NAME
from .servicer import PolicyServicer
from .settings import PolicySettings
from .store import PolicyStore

log = logs.get()


async def serve(settings: PolicySettings, shutdown: Shutdown) -> None:
    """Serve until `shutdown` is asked for; calls in flight then get `drain_limit_s` to end."""
    async with running_trail(settings, "policy") as trail:
        await _serve(settings, shutdown, trail)


async def _serve(settings: PolicySettings, shutdown: Shutdown, trail: AuditTrail) -> None:
    redis = store.connect(settings.redis_url)
    policy_store = PolicyStore(redis, timeout_s=settings.store_timeout_s)
    metrics = PolicyMetrics()
    probe = Probe(settings.metrics_listen)
    probe.set_ready("store", ok=False, detail="not asked yet")
    servicer = PolicyServicer(
        policy_store,
        metrics,
        settled_memory_s=settings.settled_memory_s,
        default_max_priority=settings.default_max_priority,
        default_cache_scope=settings.cache_scope,
    )
    server = build_server(RULES, servicer.admit_call, trail, options=[receive_limit(MAX_BODY_BYTES)])
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(servicer, server.server)
    server.add(SERVICE_NAME)
    try:
        port = await server.start(settings.listen, variable="INFERFLUX_POLICY_LISTEN")
        log.info("serving", port=port, metrics_port=probe.port)
        bootstrap = Bootstrap(policy_store, settings.bootstrap_key.get_secret_value())
        watch = StoreWatch(bootstrap, server, probe, metrics)
        await watch.run_until(shutdown, interval_s=settings.store_check_interval_s)
        probe.set_ready("running", ok=False, detail="shutting down")
        await server.stop(settings.drain_limit_s)
    finally:
        probe.close()
        await redis.aclose()


class StoreWatch:
    """Looks at the store again and again: readiness follows it, and a store that is fresh gets its key.

    The process serves whether Redis answers or not: calls are refused while it does not, and nothing has to
    be restarted when it does again.
    """

    def __init__(
        self, bootstrap: Bootstrap, server: GrpcServer, probe: Probe, metrics: PolicyMetrics
    ) -> None:
        self._bootstrap = bootstrap
        self._server = server
        self._probe = probe
        self._metrics = metrics
        self._was_up: bool | None = None

    async def run_until(self, shutdown: Shutdown, *, interval_s: float) -> None:
        is_ending = shutdown.requested.is_set()
        while not is_ending:
            try:
                await self._bootstrap.ensure()
                self._note(is_up=True)
            except Unavailable as error:
                self._note(is_up=False, why=error.message)
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
