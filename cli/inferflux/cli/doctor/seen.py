"""Facts that the checks decide about. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum, auto
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The settings of a service, as its own code reads them.

    Attributes:
        variables: all that it knows.
        bad: a line for each value that it refuses.
        values: by variable; as the environment has them where values do not fit each other.
        failure: why its code could not be asked; empty if it was.
    """

    variables: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Port:
    """An address that a service listens on.

    Attributes:
        use: `gateway, gRPC`.
        variable: the setting, or the flag of `inferctl up`, that chooses it.
        owners: what may have it: words of which one is in the command of the process, or process ids.
        bind_errno: why it cannot be bound; 0 if it can.
        pid: the process that listens there, if this user can see it, and its `command`.
    """

    use: str
    variable: str
    host: str
    port: int
    owners: tuple[str, ...]
    bind_errno: int = 0
    pid: int | None = None
    command: str = ""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_owned(self) -> bool:
        """True if the process that listens there is one that should."""
        return self.pid is not None and any(
            owner in self.command or owner == str(self.pid) for owner in self.owners
        )


class Failure(StrEnum):
    """Why a server could not be used."""

    REFUSED = auto()
    UNREACHABLE = auto()
    SILENT = auto()
    FOREIGN = auto()
    LOGIN = auto()
    TLS = auto()
    URL = auto()


@dataclass(frozen=True, slots=True)
class NatsServer:
    """A server of INFERFLUX_NATS_URL, by what it says to a client.

    Attributes:
        detail: the server's or the system's own words about the failure.
    """

    address: str
    failure: Failure | None = None
    detail: str = ""
    max_payload: int = 0
    has_jetstream: bool = True


@dataclass(frozen=True, slots=True)
class Nats:
    """NATS of an installation.

    Attributes:
        streams: whether each is there; None: it did not say.
        ahead_s: how far the server's clock is ahead of this machine's; None where it does not tell.
    """

    servers: tuple[NatsServer, ...]
    streams: Mapping[str, bool | None] = field(default_factory=dict)
    ahead_s: float | None = None


@dataclass(frozen=True, slots=True)
class Redis:
    """Redis or Valkey of an installation.

    Attributes:
        is_read_only: None where this user may not write, and so cannot tell.
        max_memory: 0: no limit; None where this user may not ask.
        keeps_policy: whether policy keeps keys and roles there.
    """

    address: str
    failure: Failure | None = None
    detail: str = ""
    is_read_only: bool | None = None
    max_memory: int | None = None
    eviction: str = ""
    ahead_s: float | None = None
    keeps_policy: bool = True


@dataclass(frozen=True, slots=True)
class Certificate:
    """A PEM file of a setting.

    Attributes:
        use: the setting, or the path of a stack's own.
        failure: why it cannot be used; empty if it can.
        names: host names and addresses in it.
        key: of the file with its key; `key_failure`: why that cannot be used, or that it is another's.
        hosts: by which clients reach the server that shows it.
    """

    use: str
    path: Path
    failure: str = ""
    not_before: datetime | None = None
    not_after: datetime | None = None
    names: tuple[str, ...] = ()
    key: Path | None = None
    key_failure: str = ""
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that services write to.

    Attributes:
        failure: why nothing can be written there; empty if it can.
        wanted_bytes: how much its setting lets it grow to; 0: no setting says.
        used_bytes: what is in it already.
    """

    use: str
    path: Path
    failure: str = ""
    free_bytes: int = 0
    wanted_bytes: int = 0
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of this machine and what a worker wants of it.

    Attributes:
        limit_bytes: None where the system does not tell.
        model: the file; None: none is named.
        plan: of `inferctl models plan`; `failure`: why there is none.
        kv_bytes: that a setting gives the KV cache, instead of the plan's; 0: none does.
    """

    limit_bytes: int | None
    model: Path | None = None
    plan: Mapping[str, Any] | None = None
    failure: str = ""
    kv_bytes: int = 0
    host_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Shared memory of this machine, and the folders of workers there.

    Attributes:
        total_bytes: None: there is none.
        left_bytes: in `left`, folders of processes that live no more.
    """

    path: Path
    total_bytes: int | None
    free_bytes: int = 0
    wanted_bytes: int = 0
    left: tuple[Path, ...] = ()
    left_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Llama:
    """llama.cpp of this environment.

    Attributes:
        failure: why it could not be loaded; `signal`: that ended the process that tried, 0: none did.
        cpu_flags: of this machine's CPU, as the kernel names them.
        drivers: of GPUs, that this machine has, by ggml's names of the parts that use them.
    """

    version: str = ""
    features: Mapping[str, str] = field(default_factory=dict)
    backends: Mapping[str, int] = field(default_factory=dict)
    failure: str = ""
    signal: int = 0
    cpu_flags: frozenset[str] = frozenset()
    drivers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Files:
    """Open files that a process may have.

    Attributes:
        whose: `this shell`, or the running gateway.
        streams: that a gateway takes.
    """

    whose: str
    soft: int
    hard: int
    streams: int
