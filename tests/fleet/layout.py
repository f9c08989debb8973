"""Which processes a fleet has, on which host, with what command and environment. Starts nothing."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.servers import nats_member, sentinel_command, watched_command

from inferflux.cli.stack.options import find_model
from inferflux.cli.stack.plan import ProcessSpec
from inferflux.cli.stack.servers import nats_command
from inferflux.common.process.private_files import write_private
from inferflux.common.servers import nats_users, redis_users
from inferflux.common.servers.fleet_files import SERVICE, Watched

from .network import Host

CLIENT = "client"
NATS = ("nats-0", "nats-1", "nats-2")
REDIS = ("redis-0", "redis-1")
GATEWAYS = ("gateway-0", "gateway-1")
SCHEDULERS = ("scheduler-0", "scheduler-1")
WORKERS = ("worker-0", "worker-1", "worker-2")
# The first is where the run itself and its clients are.
HOSTS = (CLIENT, *NATS, *REDIS, *GATEWAYS, *SCHEDULERS, *WORKERS)
# Clients know the gateways, and nothing else of the fleet.
SERVERS = HOSTS[1:]

NATS_PORT, ROUTE_PORT, MONITOR_PORT = 4222, 6222, 8222
REDIS_PORT, SENTINEL_PORT = 6379, 26379
GATEWAY_PORT, POLICY_PORT, METRICS_PORT, POLICY_METRICS_PORT = 50051, 50052, 9100, 9101
KV_PORT = 50053
_DOWN_AFTER_MS = 1000

STEP_S, SLOTS = "INFERFLUX_WORKER_NULL_STEP_S", "INFERFLUX_WORKER_SLOTS"
TRANSPORT = "INFERFLUX_KV_TRANSPORT"
# One worker for prompts, two for answers, which fetch state over the network.
WITH_ROLES = {
    "INFERFLUX_WORKER_ENGINE": "llama",
    SLOTS: "4",
    "INFERFLUX_WORKER_THREADS": "1",
    "INFERFLUX_WORKER_KV_CELLS": "4096",
    "INFERFLUX_PREFILL_POOL_SIZE": "1",
    "INFERFLUX_DECODE_POOL_SIZE": "2",
    TRANSPORT: "tcp",
}
# What the environment does not say otherwise.
DEFAULTS = {
    "INFERFLUX_WORKER_ENGINE": "null",
    # Twenty tokens a second: streams that last, and a load that a small machine can carry.
    STEP_S: "0.05",
    SLOTS: "64",
    # Random faults may take all workers at once, and one request's worker again and again.
    "INFERFLUX_SCHEDULER_NO_WORKER_TIMEOUT_S": "40",
    "INFERFLUX_SCHEDULER_MAX_RETRIES": "100",
    "INFERFLUX_DRAIN_LIMIT_S": "3",
}


@dataclass(frozen=True, slots=True)
class Secrets:
    """What processes prove themselves with."""

    api_key: str = field(default_factory=lambda: f"ifx_{secrets.token_urlsafe(32)}", repr=False)
    service_key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    routes: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    of_sentinels: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    # By user, of NATS and of Redis alike.
    passwords: Mapping[str, str] = field(
        default_factory=lambda: {name: secrets.token_hex(16) for name in _users()}, repr=False
    )


def _users() -> list[str]:
    return sorted({*(user.name for user in _nats_users()), *redis_users.USERS})


def _nats_users() -> list[nats_users.NatsUser]:
    workers = [nats_users.worker(name) for name in WORKERS]
    return [nats_users.gateway(), nats_users.scheduler(), nats_users.operator(), *workers]


class Layout:
    """The processes of each host.

    Args:
        folder: a folder below it for each host: nothing is shared.
        env: of every service.
    """

    def __init__(self, hosts: Mapping[str, Host], folder: Path, env: Mapping[str, str]) -> None:
        self._hosts = hosts
        self._folder = folder
        self._env = env
        self._model = find_model(None)
        self.secrets = Secrets()

    def nats_url(self, user: str) -> str:
        login = f"nats://{user}:{self.secrets.passwords[user]}"
        return ",".join(f"{login}@{self._hosts[name].address}:{NATS_PORT}" for name in NATS)

    def redis_url(self, user: str) -> str:
        login = f"redis+sentinel://{user}:{self.secrets.passwords[user]}"
        # Sentinels are on the hosts of NATS: three that are seldom gone together.
        sentinels = ",".join(f"{self._hosts[name].address}:{SENTINEL_PORT}" for name in NATS)
        return f"{login}@{sentinels}/{SERVICE}/0?sentinel_password={self.secrets.of_sentinels}"

    def endpoint(self, gateway: str) -> str:
        return f"{self._hosts[gateway].address}:{GATEWAY_PORT}"

    def audit_dir(self, host: str) -> Path:
        return self._folder / host / "audit"

    def specs(self, host: str) -> list[ProcessSpec]:
        """What runs on a host, in the order of its start."""
        kind = host.partition("-")[0]
        match kind:
            case "nats":
                return [self._nats(host), self._sentinel(host)]
            case "redis":
                return [self._redis(host)]
            case "gateway":
                return [self._policy(host), self._gateway(host)]
            case "scheduler":
                return [self._service(host, kind, {"INFERFLUX_SCHEDULER_ID": host})]
            case "worker":
                return [self._service(host, kind, self._of_worker(host))]
            case _:
                return []

    def _nats(self, name: str) -> ProcessSpec:
        host, store = self._hosts[name], self._folder / name / "store"
        others = tuple(f"{self._hosts[other].address}:{ROUTE_PORT}" for other in NATS if other != name)
        users_file = self._folder / name / "users.conf"
        users_file.parent.mkdir(parents=True, exist_ok=True)
        write_private(users_file, nats_users.users_config(_nats_users(), self.secrets.passwords))
        command = nats_command(
            NATS_PORT,
            store,
            host=host.address,
            monitor_port=MONITOR_PORT,
            users_file=users_file,
        )
        place = f"{host.address}:{ROUTE_PORT}"
        command = nats_member(command, name, place, others, self.secrets.routes)
        return self._spec(name, name, "nats", command, {}, NATS_PORT, data_dir=store)

    def _sentinel(self, name: str) -> ProcessSpec:
        directory, host = self._folder / name / "sentinel", self._hosts[name].address
        command = sentinel_command(SENTINEL_PORT, directory, self._watched, host=host)
        login = self.secrets.of_sentinels
        return self._spec(name, f"sentinel of {name}", "valkey", command, {}, SENTINEL_PORT, login=login)

    @property
    def _watched(self) -> Watched:
        operator = redis_users.OPERATOR
        return Watched(
            (self._hosts[REDIS[0]].address, REDIS_PORT),
            self.secrets.passwords[operator],
            self.secrets.of_sentinels,
            operator,
            _DOWN_AFTER_MS,
        )

    def _redis(self, name: str) -> ProcessSpec:
        passwords = self.secrets.passwords
        command = watched_command(
            REDIS_PORT,
            self._folder / name / "data",
            self._watched,
            host=self._hosts[name].address,
            users=redis_users.acl(passwords),
        )
        login = f"{redis_users.HEALTH} {passwords[redis_users.HEALTH]}"
        return self._spec(name, name, "valkey", command, {}, REDIS_PORT, login=login)

    def _policy(self, name: str) -> ProcessSpec:
        env = {
            "INFERFLUX_POLICY_LISTEN": f"{self._hosts[name].address}:{POLICY_PORT}",
            "INFERFLUX_POLICY_BOOTSTRAP_KEY": self.secrets.api_key,
            "INFERFLUX_SERVICE_KEY": self.secrets.service_key,
        }
        return self._service(name, "policy", env, process=f"policy of {name}", port=POLICY_METRICS_PORT)

    def _gateway(self, name: str) -> ProcessSpec:
        env = {
            "INFERFLUX_GATEWAY_LISTEN": f"{self._hosts[name].address}:{GATEWAY_PORT}",
            "INFERFLUX_POLICY_ADDRESS": f"{self._hosts[name].address}:{POLICY_PORT}",
            "INFERFLUX_SERVICE_KEY": self.secrets.service_key,
        }
        return self._service(name, "gateway", env)

    def _of_worker(self, name: str) -> dict[str, str]:
        env = {"INFERFLUX_WORKER_ID": name, "INFERFLUX_WORKER_MODEL_PATH": str(self._model)}
        if TRANSPORT in self._env:
            env["INFERFLUX_ROLE"] = "prefill" if name == WORKERS[0] else "decode"
            env["INFERFLUX_KV_LISTEN"] = f"{self._hosts[name].address}:{KV_PORT}"
            env["INFERFLUX_KV_INSECURE"] = "true"
        return env

    def _service(
        self, name: str, kind: str, env: Mapping[str, str], *, process: str = "", port: int = METRICS_PORT
    ) -> ProcessSpec:
        common = {
            "INFERFLUX_AUDIT_DIR": str(self.audit_dir(name)),
            "INFERFLUX_METRICS_LISTEN": f"{self._hosts[name].address}:{port}",
            "PYTHONUNBUFFERED": "1",
        }
        nats_user = name if kind == "worker" else kind
        if nats_user in self.secrets.passwords and kind != "policy":
            common["INFERFLUX_NATS_URL"] = self.nats_url(nats_user)
        common["INFERFLUX_REDIS_URL"] = self.redis_url(kind)
        command = [sys.executable, "-m", f"inferflux.{kind}"]
        return self._spec(name, process or name, kind, command, {**common, **self._env, **env}, port)

    def _spec(
        self,
        host: str,
        name: str,
        kind: str,
        command: list[str],
        env: Mapping[str, str],
        port: int,
        *,
        data_dir: Path | None = None,
        login: str = "",
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            kind=kind,
            command=(*self._hosts[host].prefix, *command),
            env=env,
            port=port,
            data_dir=data_dir,
            login=login,
            host=self._hosts[host].address,
        )
