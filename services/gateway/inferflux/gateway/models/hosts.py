"""Hosts of models, learnt from what they report: which models could be served, under which names (pure)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from inferflux.common.contract.known_workers import KnownWorkers
from inferflux.common.contract.messages.hosts import as_model, best_state
from inferflux.v1 import cluster_pb2, host_pb2, model_pb2

from .model_health import ModelTally

_READY = model_pb2.MODEL_STATE_READY
# A host or a worker that has not reported for this long does not count.
LIVE_S = 3.0


class HostDirectory:
    """Reports of hosts on their models. `now` is a monotonic time in seconds, passed in."""

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
        """Return the name of every model that a live host knows."""
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

    def tally(self, now: float) -> ModelTally:
        """How many models there are in which state."""
        states: defaultdict[str, set[model_pb2.ModelState.ValueType]] = defaultdict(set)
        digests: defaultdict[str, set[str]] = defaultdict(set)
        pinned: list[model_pb2.ModelState.ValueType] = []
        for _, hosted in self._hosted(now):
            states[hosted.card.name].add(hosted.state)
            digests[hosted.card.name].add(hosted.card.digest)
            if hosted.is_pinned and hosted.state != _READY:
                pinned.append(hosted.state)
        best = Counter(best_state(found) for found in states.values())
        return ModelTally(
            ready=best[_READY],
            registered=best[model_pb2.MODEL_STATE_REGISTERED],
            loading=best[model_pb2.MODEL_STATE_LOADING],
            failed=best[model_pb2.MODEL_STATE_FAILED],
            pinned_missing=len(pinned),
            pinned_failed=pinned.count(model_pb2.MODEL_STATE_FAILED),
            mixed=tuple(sorted(name for name, found in digests.items() if len(found) > 1)),
        )

    def summaries(self, now: float) -> list[cluster_pb2.HostSummary]:
        """Every live host in numbers, by its id."""
        return [
            summary(status, now - seen_s)
            for _, (seen_s, status) in sorted(self._hosts.items())
            if now - seen_s <= LIVE_S
        ]

    def model(self, name: str, now: float) -> model_pb2.Model | None:
        """A model as all live hosts report it; None if none knows it."""
        places = {host_id: hosted for host_id, hosted in self._hosted(now) if hosted.card.name == name}
        return as_model(places) if places else None

    def card(self, name: str, now: float) -> model_pb2.ModelCard | None:
        """The card of a model that a live host can load; None if there is none."""
        model = self.model(name, now)
        return model.card if model is not None and model.card.context_length else None

    def store_job(self, host_id: str, job_id: str) -> model_pb2.StoreJob | None:
        """A job of a host's store as it reported it last; None if it does not tell of it."""
        _, status = self._hosts.get(host_id, (0.0, host_pb2.HostStatus()))
        return next((job for job in status.store_jobs if job.job_id == job_id), None)

    def has_digest(self, digest: str) -> bool:
        """Return whether a host has reported a model with it."""
        return any(h.card.digest == digest for _, status in self._hosts.values() for h in status.models)

    def _hosted(self, now: float) -> Iterator[tuple[str, host_pb2.HostedModel]]:
        for host_id, (seen_s, status) in self._hosts.items():
            if now - seen_s <= LIVE_S and not status.is_leaving:
                for hosted in status.models:
                    yield host_id, hosted

    def _forget(self, host_id: str) -> None:
        self._hosts.pop(host_id, None)


def summary(status: host_pb2.HostStatus, age_s: float) -> cluster_pb2.HostSummary:
    """A host in numbers (pure)."""
    states = Counter(hosted.state for hosted in status.models)
    return cluster_pb2.HostSummary(
        host_id=status.host_id,
        pool=status.pool,
        is_leaving=status.is_leaving,
        registered=states[model_pb2.MODEL_STATE_REGISTERED],
        loading=states[model_pb2.MODEL_STATE_LOADING],
        ready=states[model_pb2.MODEL_STATE_READY],
        unloading=states[model_pb2.MODEL_STATE_UNLOADING],
        failed=states[model_pb2.MODEL_STATE_FAILED],
        models_max=status.models_max,
        memory_bytes=status.memory_bytes,
        memory_used_bytes=max(status.memory_bytes - status.memory_free_bytes, 0),
        report_age_ms=round(max(age_s, 0.0) * 1000),
    )
