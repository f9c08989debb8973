"""`python -m inferflux.common.servers.access_files DIR`: users, passwords and keys for containers.

A folder for each kind of container, with what that one needs and no more:

    nats/        users.conf, <user>.password of those who read tokens, and passwords.json, with all of NATS;
                 of several servers also cluster.conf
    valkey/      users.acl, health.password, and passwords.json; with sentinels <host>.conf of each server
    sentinel/    with sentinels: <host>.conf of each, health.password, and passwords.json
    <service>/   nats.url and redis.url, for INFERFLUX_NATS_URL_FILE and INFERFLUX_REDIS_URL_FILE; the same of
                 each worker that has a user of its own
    policy/ and gateway/   service.key, with which gateways prove themselves to policy

What is there stays: passwords are made once. So it may run before every start.
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from inferflux.common.contract.callers.tenants import parse_tenant
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.subjects import is_safe_token
from inferflux.common.process.private_files import write_private

from . import fleet_files, nats_users, redis_users
from .fleet_files import SERVICE

_OWNER = 0o400
# valkey-server runs as another user; its container alone has this folder.
_EVERYONE = 0o444


# What the passwords of servers among themselves are kept under.
_ROUTES, _SENTINELS = "routes", "sentinels"


def write_access(
    directory: Path,
    *,
    nats: str,
    redis: str,
    sentinels: Sequence[str] = (),
    tenants: Iterable[str] = (),
    workers: Sequence[str] = (),
) -> None:
    """Write every file.

    Args:
        nats: host:port of nats-server, and `redis` of valkey-server; of several, comma-separated. Several
            valkey-servers are watched by sentinels; the first one is the primary at the start.
        sentinels: host:port of each.
        tenants: whose tokens a user of NATS shall be able to read, beside those that can be read.
        workers: ids of those that have a user of NATS each, and a folder. Others share the user `worker`.
    """
    nats_servers, redis_servers = nats.split(","), redis.split(",")
    users = [nats_users.gateway(), nats_users.scheduler(), nats_users.worker(), nats_users.operator()]
    users += [nats_users.worker(worker_id) for worker_id in workers]
    observers = [nats_users.observer_name(tenant) for tenant in tenants]
    routes = [_ROUTES] if len(nats_servers) > 1 else []
    of_nats = _passwords(directory / "nats", [*(user.name for user in users), *observers, *routes], _OWNER)
    if routes:
        cluster = fleet_files.nats_cluster(nats_servers, of_nats[_ROUTES])
        write_private(directory / "nats/cluster.conf", cluster, mode=_OWNER)
    known = (nats_users.tenant_of(name) for name in of_nats)
    readers = [nats_users.observer(tenant) for tenant in known if tenant is not None]
    for reader in readers:
        write_private(directory / f"nats/{reader.name}.password", of_nats[reader.name], mode=_OWNER)
    users += readers
    write_private(directory / "nats/users.conf", nats_users.users_config(users, of_nats), mode=_OWNER)

    of_redis = _passwords(directory / "valkey", redis_users.USERS, _EVERYONE)
    acl = "\n".join(redis_users.acl(of_redis)) + "\n"
    health = of_redis[redis_users.HEALTH]
    write_private(directory / "valkey/users.acl", acl, mode=_EVERYONE)
    write_private(directory / "valkey/health.password", health, mode=_EVERYONE)

    place, options = f"{redis}/0", ""
    if sentinels:
        password = _write_watched(directory, redis_servers, sentinels, of_redis[redis_users.OPERATOR])
        place = f"{','.join(sentinels)}/{SERVICE}/0"
        options = f"?sentinel_password={password}"
    scheme = "redis+sentinel" if sentinels else "redis"

    for service in ("policy", "gateway", "scheduler", "worker", *workers):
        folder = directory / service
        folder.mkdir(exist_ok=True)
        user = "worker" if service in workers else service
        url = f"{scheme}://{user}:{of_redis[user]}@{place}{options}"
        write_private(folder / "redis.url", url, mode=_OWNER)
        if service in of_nats:
            login = f"nats://{service}:{of_nats[service]}"
            urls = ",".join(f"{login}@{server}" for server in nats_servers)
            write_private(folder / "nats.url", urls, mode=_OWNER)
    key = _kept(directory / "policy/service.key")
    write_private(directory / "gateway/service.key", key, mode=_OWNER)


def _write_watched(
    directory: Path, servers: Sequence[str], sentinels: Sequence[str], operator_password: str
) -> str:
    """Write the configuration of servers, and of the sentinels that watch them; the password of these."""
    own = _passwords(directory / "sentinel", [_SENTINELS], _EVERYONE)[_SENTINELS]
    told = fleet_files.watched(
        servers[0], user=redis_users.OPERATOR, password=operator_password, of_sentinels=own
    )
    configs = {f"valkey/{_host(each)}": fleet_files.valkey_server(each, told) for each in servers}
    configs |= {f"sentinel/{_host(each)}": fleet_files.sentinel(each, told) for each in sentinels}
    for name, config in configs.items():
        write_private(directory / f"{name}.conf", config, mode=_EVERYONE)
    write_private(directory / "sentinel/health.password", own, mode=_EVERYONE)
    return own


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _kept(path: Path) -> str:
    """Read a secret from a file; write a new one if there is no file."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32), mode=_OWNER)
    return path.read_text()


def _passwords(folder: Path, users: Iterable[str], mode: int) -> Mapping[str, str]:
    """Passwords kept in a folder, and a new one for each user without one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "passwords.json"
    known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    known |= {user: secrets.token_urlsafe(24) for user in users if user not in known}
    write_private(path, json.dumps(known, indent=2) + "\n", mode=mode)
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description="Make users and passwords of NATS and Redis.")
    parser.add_argument("directory", type=Path, help="a folder for each kind of container is in it")
    parser.add_argument("--nats", required=True, help="host:port of nats-server, or several, comma-separated")
    parser.add_argument("--redis", required=True, help="the same of valkey-server")
    parser.add_argument("--sentinel", action="append", default=[], help="host:port of one of three")
    parser.add_argument("--tenant", action="append", default=[], help="whose tokens a user of NATS may read")
    parser.add_argument("--worker", action="append", default=[], help="id of one with a user of its own")
    given = parser.parse_args()
    try:
        for tenant in given.tenant:
            parse_tenant(tenant, field="--tenant")
    except InvalidArgument as error:
        parser.error(f"--tenant: {error.message}")
    if bool(given.sentinel) != ("," in given.redis):
        parser.error("--sentinel: several servers of --redis are watched by sentinels, and one by none")
    if unsafe := [name for name in given.worker if not is_safe_token(name)]:
        parser.error(f"--worker: {unsafe[0]!r} is no id of a worker: 1-64 of A-Z a-z 0-9 _ -")
    write_access(
        given.directory,
        nats=given.nats,
        redis=given.redis,
        sentinels=given.sentinel,
        tenants=given.tenant,
        workers=given.worker,
    )


if __name__ == "__main__":
    main()
