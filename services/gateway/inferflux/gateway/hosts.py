"""Hosts of models, learnt from what they report: which models could be served, under which names (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from inferflux.common.hosts import as_model
from inferflux.common.known_workers import KnownWorkers
from inferflux.v1 import host_pb2, model_pb2

# A host or a worker that has not reported for this long does not count.
LIVE_S = 3.0


class HostDirectory:
    """What hosts say of their models. `now` is a monotonic time in seconds, passed in."""

    def __init__(self) -> None:
        # The host that reported least recently first.
        self._hosts: dict[str, tuple[float, host_pb2.HostStatus]] = {}
        self._known = KnownWorkers(self._forget)

    def note(self, status: host_pb2.HostStatus, now: float) -> None:
        """Take in a report.

        Raises:
            InvalidArgument: it is a new host, and there are as many as are kept.
        """
        self._known.admit(status.host_id, now)
        self._forget(status.host_id)
        self._hosts[status.host_id] = now, status

    def names(self, now: float) -> set[str]:
        """Of every model that a live host knows."""
        return {hosted.card.name for _, hosted in self._hosted(now)}

    def resolve(self, name: str, now: float) -> str:
        """The model that a name means: itself, or the one that it is an alias of; none means the default one.

        A name that nothing is known of stays as it is. Where hosts differ, the first model by name is meant.
        """
        meant: set[str] = set()
        for _, hosted in self._hosted(now):
            if hosted.card.name == name:
                return name
            if (name in hosted.aliases) if name else hosted.is_default:
                meant.add(hosted.card.name)
        return min(meant, default=name)

    def model(self, name: str, now: float) -> model_pb2.Model | None:
        """A model as all live hosts report it; None if none knows it."""
        places = {host_id: hosted for host_id, hosted in self._hosted(now) if hosted.card.name == name}
        return as_model(places) if places else None

    def card(self, name: str, now: float) -> model_pb2.ModelCard | None:
        """The card of a model that a live host can load; None if there is none."""
        model = self.model(name, now)
        return model.card if model is not None and model.card.context_length else None

    def has_digest(self, digest: str) -> bool:
        """Whether a host has reported a model with it."""
        return any(h.card.digest == digest for _, status in self._hosts.values() for h in status.models)

    def _hosted(self, now: float) -> Iterator[tuple[str, host_pb2.HostedModel]]:
        for host_id, (seen_s, status) in self._hosts.items():
            if now - seen_s <= LIVE_S and not status.is_leaving:
                for hosted in status.models:
                    yield host_id, hosted

    def _forget(self, host_id: str) -> None:
        self._hosts.pop(host_id, None)
