"""Access to the servers of a stack: a user and a password for each process that uses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from inferflux.cli.reach.state_dir import FIRST_TENANT, StateDir
from inferflux.common.process.private_files import write_private
from inferflux.common.process.tls import TlsFiles
from inferflux.common.servers import nats_users, redis_users
from inferflux.common.servers.nats_users import NatsUser
from inferflux.common.servers.servers import LOOPBACK
from inferflux.common.servers.watched_servers import SERVICE, Watched

from .cert_files import ca_file, files_of
from .ports import Ports

# What the password of a cluster's connections is kept under.
_ROUTES = "routes"
# The same of the sentinels.
_SENTINELS = "sentinels"


@dataclass(frozen=True, slots=True)
class Access:
    """The passwords of a stack, by user.

    Attributes:
        nats_users_file: where nats-server reads what its users may do.
        nats_route_password: with which servers of a cluster call each other.
        sentinel_password: with which sentinels are asked, and ask each other.
        certificates: the folder of the certificates of a stack with TLS; None: it speaks plain text.
    """

    nats: Mapping[str, str] = field(repr=False)
    redis: Mapping[str, str] = field(repr=False)
    nats_users_file: Path
    nats_route_password: str = field(repr=False)
    sentinel_password: str = field(repr=False)
    certificates: Path | None = None

    def urls(self, ports: Ports, kind: str, name: str) -> dict[str, str]:
        """Environment variables with the URLs of the servers that a service uses."""
        urls = {}
        nats_user = name if kind == "worker" else kind
        if nats_user in self.nats:
            urls["INFERFLUX_NATS_URL"] = self.nats_url(ports, nats_user)
        if kind in self.redis:
            urls["INFERFLUX_REDIS_URL"] = self.redis_url(ports, kind)
        return urls

    def nats_url(self, ports: Ports, user: str) -> str:
        scheme = "tls" if self.certificates else "nats"
        login = f"{scheme}://{user}:{self.nats[user]}"
        return ",".join(f"{login}@{LOOPBACK}:{port}" for port in ports.nats)

    def redis_url(self, ports: Ports, user: str) -> str:
        asked = ports.sentinels or ports.redis
        place = f"{user}:{self.redis[user]}@{','.join(f'{LOOPBACK}:{port}' for port in asked)}"
        if ports.sentinels:
            return f"redis+sentinel://{place}/{SERVICE}/0?sentinel_password={self.sentinel_password}"
        return f"redis-cluster://{place}/0" if ports.redis_buses else f"redis://{place}/0"

    def watched(self, primary: int) -> Watched:
        """Settings by which Redis servers and sentinels find each other.

        Args:
            primary: the port of the primary at the start.
        """
        operator = redis_users.OPERATOR
        return Watched((LOOPBACK, primary), self.redis[operator], self.sentinel_password, operator)

    def tls_of(self, name: str) -> TlsFiles | None:
        """The certificate that a process shows, and the CA of those that it must be shown."""
        if self.certificates is None:
            return None
        cert, key = files_of(self.certificates, name)
        return TlsFiles(cert, key, ca_file(self.certificates))

    def tls_settings(self, kind: str) -> dict[str, str]:
        """Environment variables with a service's certificate, key and CAs."""
        files = self.tls_of(kind) or TlsFiles()
        paths = {"CERT": files.cert, "KEY": files.key, "CA": files.ca, "CLIENT_CA": files.ca}
        # Without TLS, what a user has set for a client of another gateway is not for these.
        return {f"INFERFLUX_TLS_{name}": str(path or "") for name, path in paths.items()}


def grant(state_dir: StateDir, workers: Iterable[str], *, certificates: Path | None = None) -> Access:
    """Give every process of a stack its users, and write them down for nats-server.

    Tenants whose tokens could be read before keep that.
    """
    users = [nats_users.gateway(), nats_users.scheduler(), nats_users.operator()]
    # Workers of the stack have a user each. One that is started by hand has a name that is not known here.
    users += [nats_users.worker(), *(nats_users.worker(name) for name in workers)]
    own = [user.name for user in users]
    nats = state_dir.passwords("nats", [*own, nats_users.observer_name(FIRST_TENANT)])
    redis = state_dir.passwords("redis", redis_users.USERS)
    write_private(state_dir.nats_users_file, nats_users.users_config([*users, *_observers(nats)], nats))
    route = state_dir.passwords("nats-routes", [_ROUTES])[_ROUTES]
    of_sentinels = state_dir.passwords("sentinels", [_SENTINELS])[_SENTINELS]
    return Access(nats, redis, state_dir.nats_users_file, route, of_sentinels, certificates)


def _observers(passwords: Mapping[str, str]) -> list[NatsUser]:
    tenants = (nats_users.tenant_of(user) for user in passwords)
    return [nats_users.observer(tenant) for tenant in tenants if tenant is not None]
