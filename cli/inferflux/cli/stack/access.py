"""Access to the servers of a stack: a user and a password for each process that uses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from inferflux.api.tls import PLAIN_TEXT, Tls
from inferflux.cli.reach.state_dir import FIRST_TENANT, StateDir
from inferflux.common.process.private_files import write_private
from inferflux.common.process.tls import TlsFiles
from inferflux.common.servers import nats_users, redis_users
from inferflux.common.servers.nats_users import NatsUser

from .cert_files import ca_file, files_of
from .ports import Ports
from .servers import LOOPBACK


@dataclass(frozen=True, slots=True)
class Access:
    """The passwords of a stack, by user.

    Attributes:
        nats_users_file: where nats-server reads what its users may do.
        certificates: the folder of the certificates of a stack with TLS; None: it speaks plain text.
        other_nats: the URL of NATS that is not the stack's own, for every user; `other_redis` the same.
    """

    nats: Mapping[str, str] = field(repr=False)
    redis: Mapping[str, str] = field(repr=False)
    nats_users_file: Path
    certificates: Path | None = None
    other_nats: str = field(default="", repr=False)
    other_redis: str = field(default="", repr=False)

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
        return self.other_nats or f"{scheme}://{user}:{self.nats[user]}@{LOOPBACK}:{ports.nats}"

    def redis_url(self, ports: Ports, user: str) -> str:
        return self.other_redis or f"redis://{user}:{self.redis[user]}@{LOOPBACK}:{ports.redis}/0"

    def tls_of(self, name: str) -> TlsFiles | None:
        """The certificate that a process shows, and the CA of those that it must be shown."""
        if self.certificates is None:
            return None
        cert, key = files_of(self.certificates, name)
        return TlsFiles(cert, key, ca_file(self.certificates))

    @property
    def client_tls(self) -> Tls:
        """TLS settings for a client of the gateways."""
        return Tls(ca_file(self.certificates)) if self.certificates else PLAIN_TEXT

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
    return Access(nats, redis, state_dir.nats_users_file, certificates)


def _observers(passwords: Mapping[str, str]) -> list[NatsUser]:
    tenants = (nats_users.tenant_of(user) for user in passwords)
    return [nats_users.observer(tenant) for tenant in tenants if tenant is not None]
