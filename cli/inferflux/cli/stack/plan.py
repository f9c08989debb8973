"""Plan of a stack: its processes, their commands, environments and order. Starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from inferflux.common.contract import partitions
from inferflux.common.servers import redis_users

from .access import Access
from .options import (
    DISK_PATH,
    ENGINE,
    MODELS_STORE,
    NULL_WORKERS,
    POOL_SIZES,
    ROLE,
    THREADS,
    ZONE,
    StackOptions,
)
from .ports import Ports
from .servers import LOOPBACK, free_port, nats_command, valkey_command

# Processes that end together, in this order: none loses a service that it needs to finish.
END_ORDER = (("gateway",), ("scheduler", "worker", "policy"), ("nats", "valkey"))


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process of a stack.

    Attributes:
        name: `worker-0`; what logs and messages call it.
        kind: `worker`; what it is one of.
        port: where readiness is asked: /readyz over HTTP for a service, its own protocol for a server.
        host: the address of that port.
        cpus: the CPUs it may run on; None for all.
        monitor_port: of a server that says over HTTP how it is; 0: it does not.
        data_dir: what a server writes to.
        login: user and password with which a valkey-server is asked whether it is ready.
    """

    name: str
    kind: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    port: int
    cpus: frozenset[int] | None = None
    monitor_port: int = 0
    data_dir: Path | None = None
    login: str = field(default="", repr=False)
    host: str = LOOPBACK

    @property
    def is_service(self) -> bool:
        return self.kind not in ("nats", "valkey")


def plan(
    options: StackOptions,
    *,
    model: Path,
    ports: Ports,
    state_dir: Path,
    api_key: str,
    service_key: str,
    access: Access,
    cores: int,
) -> list[list[ProcessSpec]]:
    """The stages of a start: all of a stage start together, when the stage before is ready.

    Services wait for each other by themselves, so they are one stage: most of a start is imports.

    Args:
        api_key: the first admin key, for policy alone.
        service_key: for those that call policy, and policy. With TLS they show certificates instead.
        access: the users and passwords of NATS and Redis, and who has which certificate.
        cores: those of this machine that its workers may keep busy.
    """
    common = {
        **_policy_address(ports),
        **_audit(state_dir),
        "INFERFLUX_EXIT_WITH_PARENT": "true",
        "INFERFLUX_DRAIN_LIMIT_S": f"{options.drain_limit_s:g}",
        "PYTHONUNBUFFERED": "1",
        **options.env,
    }

    def service(kind: str, env: Mapping[str, str], name: str = "", user: str = "") -> ProcessSpec:
        name = name or kind
        port = free_port()
        own = {
            **options.service_env.get(kind, {}),
            **(options.service_env.get(name, {}) if name != kind else {}),
        }
        return ProcessSpec(
            name=name,
            kind=kind,
            command=(sys.executable, "-m", f"inferflux.{kind}"),
            env={
                **access.urls(ports, kind, user or name),
                **access.tls_settings(kind),
                **common,
                "INFERFLUX_METRICS_LISTEN": f"{LOOPBACK}:{port}",
                **env,
                **own,
            },
            port=port,
            cpus=_of(options.cpus, name, kind),
        )

    proof = _proof(service_key, access)

    def policy(name: str, port: int) -> ProcessSpec:
        listen = {"INFERFLUX_POLICY_LISTEN": f"{LOOPBACK}:{port}"}
        return service(
            "policy", {**listen, "INFERFLUX_POLICY_BOOTSTRAP_KEY": api_key, **proof}, name, "policy"
        )

    def gateway(index: int, name: str, port: int, http: int) -> ProcessSpec:
        listen = {
            "INFERFLUX_GATEWAY_LISTEN": f"{LOOPBACK}:{port}",
            "INFERFLUX_GATEWAY_HTTP_LISTEN": f"{LOOPBACK}:{http}",
            # Tools that were written for another server ask for its models.
            "INFERFLUX_GATEWAY_ANY_MODEL": "true",
        }
        return service("gateway", {**listen, **proof, **_zone(options, index)}, name, "gateway")

    gateways = [
        gateway(index, name, *where)
        for index, (name, where) in enumerate(
            zip(gateway_names(options.gateways), ports.gateways, strict=True)
        )
    ]
    workers = [
        service(
            "worker",
            {**_worker_env(options, model, state_dir, name, cores), **_zone(options, index)},
            name,
            _nats_user(options, name),
        )
        for index, name in enumerate(options.worker_roles)
    ]
    schedulers = [
        service(
            "scheduler",
            {
                "INFERFLUX_SCHEDULER_ID": name,
                partitions.VARIABLE: str(options.partitions),
                **_pool_sizes(options),
            },
            name,
        )
        for name in scheduler_names(options.schedulers)
    ]
    servers = [
        *([] if options.nats_url else [_nats(options, ports, state_dir, access)]),
        *([] if options.redis_url else [_valkey(options, ports, state_dir, access)]),
    ]
    policies = zip(policy_names(options.policies), ports.policies, strict=True)
    services = [*(policy(*one) for one in policies), *schedulers, *workers, *gateways]
    return [servers, services] if servers else [services]


def _nats(options: StackOptions, ports: Ports, state_dir: Path, access: Access) -> ProcessSpec:
    store, monitor_port = options.nats_store or state_dir / "nats", free_port()
    command = nats_command(
        ports.nats,
        store,
        monitor_port=monitor_port,
        sync_interval=options.nats_sync_interval,
        users_file=access.nats_users_file,
        tls=access.tls_of("nats"),
    )
    cpus = options.cpus.get("nats")
    return ProcessSpec("nats", "nats", tuple(command), {}, ports.nats, cpus, monitor_port, store)


def _valkey(options: StackOptions, ports: Ports, state_dir: Path, access: Access) -> ProcessSpec:
    data = state_dir / "valkey"
    command = tuple(valkey_command(ports.redis, data, users=redis_users.acl(access.redis)))
    login = f"{redis_users.HEALTH} {access.redis[redis_users.HEALTH]}"
    cpus = options.cpus.get("valkey")
    return ProcessSpec("valkey", "valkey", command, {}, ports.redis, cpus, data_dir=data, login=login)


def joining(ports: Ports, access: Access, *, state_dir: Path, service_key: str) -> dict[str, dict[str, str]]:
    """Environment variables, by kind of service, with which one more of it joins the stack."""
    policy = _policy_address(ports)
    proofs = _proof(service_key, access)
    audited = {kind: {**proofs, **_audit(state_dir)} for kind in ("policy", "gateway")}
    return {
        kind: {
            **access.urls(ports, kind, kind),
            **access.tls_settings(kind),
            **policy,
            **audited.get(kind, {}),
        }
        for kind in ("policy", "gateway", "scheduler", "worker")
    }


def _audit(state_dir: Path) -> dict[str, str]:
    """Environment variable with the folder of the audit trail of all processes."""
    return {"INFERFLUX_AUDIT_DIR": str(state_dir / "audit")}


def _proof(service_key: str, access: Access) -> dict[str, str]:
    """Environment variable with the service key for policy; empty with TLS, where certificates prove it."""
    return {"INFERFLUX_SERVICE_KEY": "" if access.certificates else service_key}


def _policy_address(ports: Ports) -> dict[str, str]:
    """Environment variable with the addresses of policy."""
    return {"INFERFLUX_POLICY_ADDRESS": ",".join(f"{LOOPBACK}:{port}" for port in ports.policies)}


def policy_names(count: int) -> list[str]:
    """Names of the policy processes."""
    return ["policy"] if count == 1 else [f"policy-{index}" for index in range(count)]


def scheduler_names(count: int) -> list[str]:
    """Names of the scheduler processes."""
    return ["scheduler"] if count == 1 else [f"scheduler-{index}" for index in range(count)]


def gateway_names(count: int) -> list[str]:
    """Names of the gateway processes."""
    return ["gateway"] if count == 1 else [f"gateway-{index}" for index in range(count)]


def _nats_user(options: StackOptions, name: str) -> str:
    """The user as which a worker process connects. One that has many workers is the user of all of them."""
    return "worker" if options.null_workers > 1 else name


def _worker_env(options: StackOptions, model: Path, state_dir: Path, name: str, cores: int) -> dict[str, str]:
    env = {"INFERFLUX_WORKER_ID": name, "INFERFLUX_WORKER_MODEL_PATH": str(model)}
    wanted = {
        "INFERFLUX_WORKER_MODEL_NAME": options.model_name,
        "INFERFLUX_WORKER_SLOTS": options.slots,
        THREADS: options.threads or _share_of_cores(options, name, cores),
        "INFERFLUX_WORKER_KV_CELLS": options.kv_cells,
        DISK_PATH: state_dir / "kv" if options.has_disk_tier else "",
        MODELS_STORE: state_dir / "models" if options.has_store else "",
        ENGINE: "null" if options.null_workers else "",
        NULL_WORKERS: options.null_workers,
        ROLE: options.worker_roles[name],
    }
    return env | {variable: str(value) for variable, value in wanted.items() if value}


def _pool_sizes(options: StackOptions) -> dict[str, str]:
    """Environment variables with how many workers of each role there should be; none without roles."""
    each = max(1, options.null_workers)
    counts = {"prefill": options.prefill, "decode": options.decode}
    return {POOL_SIZES[role]: str(count * each) for role, count in counts.items() if count}


def _zone(options: StackOptions, index: int) -> dict[str, str]:
    """Environment variable with the zone of a gateway or worker, by its number among its kind."""
    return {ZONE: options.zones[index % len(options.zones)]} if options.zones else {}


def _share_of_cores(options: StackOptions, name: str, cores: int) -> int:
    """Threads of a worker beside others of this machine; 0 leaves them to the worker, which takes every core.

    An engine's threads wait for each other many times in a step: those that share cores with another engine's
    hold each other up.
    """
    workers = len(options.worker_roles)
    is_alone = workers == 1 or name in options.cpus
    if is_alone or not options.divides_cores:
        return 0
    return max(1, len(options.cpus.get("worker", range(cores))) // workers)


def _of(cpus: Mapping[str, frozenset[int]], name: str, kind: str) -> frozenset[int] | None:
    return cpus.get(name, cpus.get(kind))
