"""Hosts of models that live, as they report themselves (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from inferflux.common.contract.known_workers import KnownWorkers
from inferflux.common.contract.messages.hosts import same_file
from inferflux.common.contract.requests.worker_pools import DEFAULT, may_run_in
from inferflux.v1 import host_pb2, model_pb2

REGISTERED = model_pb2.MODEL_STATE_REGISTERED
LOADING = model_pb2.MODEL_STATE_LOADING
READY = model_pb2.MODEL_STATE_READY
FAILED = model_pb2.MODEL_STATE_FAILED
UNLOADING = model_pb2.MODEL_STATE_UNLOADING

# A model that is being unloaded for longer is not waited for any more: something keeps it.
LEAVES_WITHIN_S = 120.0

# States in which a model takes memory and a place.
_HELD = frozenset({LOADING, READY, UNLOADING})


@dataclass(slots=True)
class HostView:
    """A host, as its latest status says, and what it was told since.

    Attributes:
        models: by name.
        ready_since_s: since when each model was seen ready, by this process's clock.
        loading_since_s, unloading_since_s: the same of those that are being loaded or unloaded.
        loads, unloads: models that it was told to load or to unload, and has not answered for.
        blocked_until_s: models of which it has refused a command lately, or has not answered one.
    """

    status: host_pb2.HostStatus
    seen_s: float
    models: dict[str, host_pb2.HostedModel] = field(default_factory=dict)
    ready_since_s: dict[str, float] = field(default_factory=dict)
    loading_since_s: dict[str, float] = field(default_factory=dict)
    unloading_since_s: dict[str, float] = field(default_factory=dict)
    loads: set[str] = field(default_factory=set)
    unloads: set[str] = field(default_factory=set)
    blocked_until_s: dict[str, float] = field(default_factory=dict)

    @property
    def host_id(self) -> str:
        return self.status.host_id

    @property
    def held(self) -> Iterator[host_pb2.HostedModel]:
        """Models that take memory, or will as soon as the host is told."""
        return (model for name, model in self.models.items() if model.state in _HELD or name in self.loads)

    @property
    def free_bytes(self) -> int:
        """Memory that no model takes; negative where they take more than they should."""
        return self.status.memory_bytes - sum(model.needs_bytes for model in self.held)

    @property
    def free_places(self) -> int:
        """Models that may be loaded beside those that are."""
        return self.status.models_max - sum(1 for _ in self.held)

    def leaving(self, now: float) -> Iterator[host_pb2.HostedModel]:
        """Models that are being unloaded, and will be soon: not those that have been for too long."""
        for name, model in self.models.items():
            is_leaving = model.state == UNLOADING or name in self.unloads
            if is_leaving and now - self.unloading_since_s.get(name, now) < LEAVES_WITHIN_S:
                yield model

    @property
    def staying(self) -> Iterator[host_pb2.HostedModel]:
        """Pinned models that are loaded, or will be."""
        return (model for model in self.held if model.is_pinned and model.state != UNLOADING)

    def serves_pools(self, pools: Collection[str]) -> bool:
        """True if requests that may run in these pools alone may run here; empty: everywhere."""
        return may_run_in(self.status.pool or DEFAULT, pools)

    def take(self, status: host_pb2.HostStatus, now: float) -> None:
        """Take in what it reports."""
        self.status, self.seen_s = status, now
        self.models = {}
        for model in status.models:
            self.note(model, now)
        self._forget(self.ready_since_s)
        self._forget(self.loading_since_s)
        self._forget(self.unloading_since_s)
        self._forget(self.blocked_until_s)

    def note(self, model: host_pb2.HostedModel, now: float) -> None:
        """Take in what it says of one model."""
        name = model.card.name
        self.models[name] = model
        for state, since_s in (
            (LOADING, self.loading_since_s),
            (READY, self.ready_since_s),
            (UNLOADING, self.unloading_since_s),
        ):
            if model.state == state:
                since_s.setdefault(name, now)
            else:
                since_s.pop(name, None)

    def _forget(self, times: dict[str, float]) -> None:
        for name in [name for name in times if name not in self.models]:
            del times[name]


class HostTable:
    """Every host that lives."""

    def __init__(self) -> None:
        self._hosts: dict[str, HostView] = {}
        self._known = KnownWorkers(self._displace)

    def __iter__(self) -> Iterator[HostView]:
        return iter(self._hosts.values())

    def __len__(self) -> int:
        return len(self._hosts)

    def get(self, host_id: str) -> HostView | None:
        return self._hosts.get(host_id)

    def on_status(self, status: host_pb2.HostStatus, now: float) -> None:
        """A host reports.

        Raises:
            InvalidArgument: it is new, and there are as many as are kept.
        """
        host = self._hosts.get(status.host_id)
        if host is not None and host.status.incarnation != status.incarnation:
            if status.started_unix_ms < host.status.started_unix_ms:
                return
            host = None
        self._known.admit(status.host_id, now)
        if host is None:
            host = self._hosts[status.host_id] = HostView(status, now)
        host.take(status, now)

    def forget_silent(self, now: float, dead_after_s: float) -> None:
        """Forget those that have not reported for too long."""
        for host_id in [h.host_id for h in self if now - h.seen_s > dead_after_s]:
            del self._hosts[host_id]

    def reset_liveness(self, until_s: float) -> None:
        """Count no host's silence before `until_s`: it could not report."""
        for host in self:
            host.seen_s = max(host.seen_s, until_s)

    def knowing(self, model: str, pools: Collection[str] = (), digest: str = "") -> list[HostView]:
        """Hosts that could serve a model, in one of these pools and from this file, where they are named."""
        return [
            host
            for host in self
            if model in host.models
            and not host.status.is_leaving
            and host.serves_pools(pools)
            and same_file(digest, host.models[model].card.digest)
        ]

    def _displace(self, host_id: str) -> None:
        self._hosts.pop(host_id, None)
