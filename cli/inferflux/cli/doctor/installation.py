"""What of an installation is to be looked at: its addresses, files and folders. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from inferflux.cli.reach.state_dir import StackState
from inferflux.cli.stack.cert_files import NAMES, ca_file, files_of
from inferflux.common.contract.address import split
from inferflux.common.process.settings import FILE_SUFFIX
from inferflux.common.process.tls import TlsFiles

from .seen import Certificate, Port, ServiceSettings

_NATS, _REDIS = "INFERFLUX_NATS_URL", "INFERFLUX_REDIS_URL"
_ANY_HOST = ("", "0.0.0.0", "::")  # noqa: S104 - names what listens so
_LOOPBACK = ("127.0.0.1", "localhost")
_SERVICES = ("gateway", "policy", "scheduler", "worker")
# Of each service: what listens, and the setting that says where.
_LISTENERS = (
    ("gateway", "gRPC", "INFERFLUX_GATEWAY_LISTEN"),
    ("gateway", "HTTP", "INFERFLUX_GATEWAY_HTTP_LISTEN"),
    ("policy", "gRPC", "INFERFLUX_POLICY_LISTEN"),
    ("worker", "KV state", "INFERFLUX_KV_LISTEN"),
    *((service, "metrics", "INFERFLUX_METRICS_LISTEN") for service in _SERVICES),
)
# Ports that `inferctl up` asks for unless its flags name others.
_OF_UP = (
    ("gateway, gRPC", "--gateway-port", 50051),
    ("policy, gRPC", "--policy-port", 50052),
    ("nats-server", "--nats-port", 4222),
    ("valkey-server", "--redis-port", 6379),
)
_PAIRS = (
    ("INFERFLUX_TLS_CERT", "INFERFLUX_TLS_KEY"),
    ("INFERFLUX_GATEWAY_TLS_CERT", "INFERFLUX_GATEWAY_TLS_KEY"),
    *(
        (name, "")
        for name in ("INFERFLUX_TLS_CA", "INFERFLUX_TLS_CLIENT_CA", "INFERFLUX_GATEWAY_TLS_CLIENT_CA")
    ),
)


@dataclass(frozen=True, slots=True)
class Installation:
    """An installation.

    Attributes:
        env: of its services.
        is_named: whether `env` says where NATS and Redis are, or stands in a file of its own.
        stack: the one of `state_dir`, if it runs.
        settings: of every service, by its name.
        services: those that are looked at.
        hosts: further names by which clients reach the gateway.
    """

    env: Mapping[str, str]
    is_named: bool
    state_dir: Path
    stack: StackState | None
    settings: Mapping[str, ServiceSettings]
    services: tuple[str, ...]
    hosts: tuple[str, ...] = ()

    def value(self, variable: str) -> Any:
        """The value of a setting of a service that is looked at; None where none of them has it."""
        found = (self.settings[service].values.get(variable) for service in self.services)
        return next((value for value in found if value not in (None, "")), None)

    @property
    def uses_stack(self) -> bool:
        """True if the addresses are those of the stack that runs here."""
        return self.stack is not None and not self.is_named

    @property
    def nats_urls(self) -> list[str]:
        """URLs of NATS, one for each user that services have; none where nothing says."""
        return self._urls(_NATS, "" if self.stack is None else self.stack.nats_url)

    @property
    def redis_urls(self) -> list[str]:
        """The same of Redis."""
        return self._urls(_REDIS, "" if self.stack is None else self.stack.redis_url)

    def _urls(self, variable: str, of_stack: str) -> list[str]:
        if self.uses_stack:
            return [of_stack]
        if not self.is_named:
            return []
        users = [service for service in self.services if (variable, service) != (_NATS, "policy")]
        values = (self.settings[service].values.get(variable) for service in users)
        return list(dict.fromkeys(str(value) for value in values if value))

    @property
    def keeps_policy(self) -> bool:
        """True if keys and roles are in Redis."""
        return self.value("INFERFLUX_POLICY_STORAGE") in (None, "redis")

    @property
    def client_tls(self) -> TlsFiles:
        """Files with which NATS and Redis are called."""
        if self.uses_stack:
            if self.stack is None or not self.stack.tls_ca:
                return TlsFiles()
            return TlsFiles(*files_of(self.state_dir / "tls", "client"), Path(self.stack.tls_ca))
        paths = [self.value(f"INFERFLUX_TLS_{name}") for name in ("CERT", "KEY", "CA")]
        cert, key, ca = (None if path is None else Path(path) for path in paths)
        return TlsFiles(cert, key, ca)

    def ports(self) -> list[Port]:
        """Addresses on this machine that services listen on, or that `inferctl up` would."""
        if self.uses_stack:
            return list(self._ports_of_stack())
        if not self.is_named:
            return [
                Port(use, f"`inferctl up {flag} 0`", _LOOPBACK[0], port, ()) for use, flag, port in _OF_UP
            ]
        return list(self._ports_of_services())

    def _ports_of_stack(self) -> Iterator[Port]:
        if self.stack is None:
            return
        pids = tuple(map(str, self.stack.processes.values()))
        for address in self.stack.endpoint.split(","):
            yield Port("gateway, gRPC", "`inferctl up --gateway-port`", *split(address, ""), pids)
        for name, address in self.stack.metrics.items():
            place = urlsplit(address if "://" in address else f"http://{address}")
            if place.hostname and place.port:
                yield Port(f"{name}, metrics", "a restart of the stack", place.hostname, place.port, pids)

    def _ports_of_services(self) -> Iterator[Port]:
        shared: set[str] = set()
        for service, what, variable in _LISTENERS:
            address = self.settings[service].values.get(variable) if service in self.services else None
            if not address or address in shared:
                continue
            host, port = split(str(address), variable)
            if port:
                shared.add(str(address))
                # One environment may be that of several services.
                owners = _SERVICES if what == "metrics" else (service,)
                words = (f"inferflux{mark}{owner}" for owner in owners for mark in ".-")
                yield Port(f"{service}, {what}", variable, host, port, tuple(words))

    @property
    def called_hosts(self) -> list[str]:
        """Hosts by which clients on this machine call services."""
        urls = chain(self.nats_urls, self.redis_urls)
        places = chain.from_iterable(url.partition("://")[2].split(",") for url in urls)
        named = (urlsplit(f"//{place.rpartition('@')[2]}").hostname for place in places)
        return [*_LOOPBACK, *(host for host in named if host and host not in _LOOPBACK), *self.hosts]

    def certificates(self) -> list[Certificate]:
        """The certificates of settings; those of a stack that speaks TLS."""
        if self.uses_stack:
            return list(self._certificates_of_stack())
        found = []
        of_gateway = (
            "INFERFLUX_GATEWAY_TLS_CERT" if self.value("INFERFLUX_GATEWAY_TLS_CERT") else "INFERFLUX_TLS_CERT"
        )
        for variable, key_variable in _PAIRS:
            path, key = self.value(variable), self.value(key_variable)
            if path is not None:
                hosts = self._gateway_hosts() if variable == of_gateway and "gateway" in self.services else ()
                found.append(
                    Certificate(variable, Path(path), key=None if key is None else Path(key), hosts=hosts)
                )
        return found

    def _gateway_hosts(self) -> tuple[str, ...]:
        addresses = [
            self.env.get("INFERFLUX_ENDPOINT", ""),
            str(self.value("INFERFLUX_GATEWAY_LISTEN") or ""),
        ]
        each = chain.from_iterable(address.split(",") for address in addresses)
        named = (address.strip().rpartition(":")[0].strip("[]") for address in each)
        return tuple(dict.fromkeys(host for host in (*named, *self.hosts) if host not in _ANY_HOST))

    def _certificates_of_stack(self) -> Iterator[Certificate]:
        if self.stack is None or not self.stack.tls_ca:
            return
        folder = self.state_dir / "tls"
        yield Certificate("the stack's CA", ca_file(folder))
        for name in NAMES:
            cert, key = files_of(folder, name)
            yield Certificate(
                f"the stack's {name}", cert, key=key, hosts=self.hosts if name == "gateway" else ()
            )

    def folders(self) -> list[tuple[str, Path, int]]:
        """Folders that are written to: what each is for, where it is, and the bytes that it may take."""
        wanted = {
            "INFERFLUX_MODELS_STORE": self._bytes("INFERFLUX_MODELS_STORE_BYTES"),
            "INFERFLUX_WORKER_DISK_PATH": self._bytes("INFERFLUX_WORKER_DISK_BYTES"),
            "INFERFLUX_AUDIT_DIR": 0,
        }
        named = [(name, self.value(name), size) for name, size in wanted.items()]
        found = [(name, Path(path), size) for name, path, size in named if path is not None]
        return found if self.is_named else [("state directory", self.state_dir, 0), *found]

    def _bytes(self, variable: str) -> int:
        return int(self.value(variable) or 0)

    @property
    def model(self) -> Path | None:
        """The model of the worker."""
        path = self.value("INFERFLUX_WORKER_MODEL_PATH")
        return None if path is None else Path(path)

    @property
    def shm_bytes(self) -> int:
        """Bytes of shared memory of a worker; 0: it uses none."""
        return 0 if self.value("INFERFLUX_WORKER_DISK_PATH") else self._bytes("INFERFLUX_WORKER_SHM_BYTES")


def is_named(env: Mapping[str, str]) -> bool:
    """True if an environment says where NATS or Redis is."""
    return any(env.get(name + suffix) for name in (_NATS, _REDIS) for suffix in ("", FILE_SUFFIX))
