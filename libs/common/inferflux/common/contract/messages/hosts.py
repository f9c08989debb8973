"""Hosts of models: the ids of the workers on one, and what its status may say. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from inferflux.common.contract import checks, partitions, subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.terms import MAX_TERMS
from inferflux.v1 import host_pb2, model_pb2

from .heartbeats import check_card

MOST_LOADED = 16
"""Models that a host may have loaded at once: each has a worker id, which users of NATS name one by one."""
MAX_KNOWN = 256
"""Models that a host may know."""
MAX_ALIASES = 16
MAX_STATUS_BYTES = 768 << 10
"""Of the names and cards of all models that a host knows: its status has to fit a message of NATS, 1 MiB by
default, with the reasons of failures."""
LONGEST_HOST_ID = 60
"""Worker ids made of it are tokens of at most 64 characters."""
MAX_JOBS = 256
MAX_JOB_TEXT_BYTES = 8192
MAX_REASON_BYTES = 1024
MAX_PATH_BYTES = 4096
MAX_BYTES = 1 << 60
"""More memory than any machine has: what would take more is said to take this much."""
_MAX_S = 1e9
_TOLD_WHY = frozenset({model_pb2.MODEL_STATE_FAILED, model_pb2.MODEL_STATE_LOADING})
_MEMBER = re.compile(r"--\d+$")


def worker_ids(host_id: str) -> list[str]:
    """The ids that workers on a host may have. The first is the host's own."""
    return [host_id, *(f"{host_id}--{n}" for n in range(1, MOST_LOADED))]


def is_member_id(worker_id: str) -> bool:
    """True if `worker_ids` gives this id to a host's further worker."""
    return _MEMBER.search(worker_id) is not None


def parse_status(data: bytes, subject: str) -> host_pb2.HostStatus:
    """Decode and check a status that came on `subject`.

    Raises:
        InvalidArgument: naming the field; it cannot be decoded, or is of another host than the subject's.
    """
    status = checks.decode(host_pb2.HostStatus, data)
    check_status(status)
    if subject != subjects.host_status(status.host_id):
        raise InvalidArgument("host_id is another than the subject's", field="host_id")
    return status


def check_status(status: host_pb2.HostStatus) -> None:
    """See that a status is one that a host could have sent.

    Raises:
        InvalidArgument: naming the field.
    """
    checks.check_token(status.host_id, "host_id")
    checks.check_token(status.incarnation, "incarnation")
    if status.pool:
        checks.check_token(status.pool, "pool")
    if status.zone:
        checks.check_token(status.zone, "zone")
    checks.check_range(status.models_max, 1, MOST_LOADED, "models_max")
    checks.check_range(status.memory_bytes, 0, MAX_BYTES, "memory_bytes")
    checks.check_range(status.memory_free_bytes, 0, MAX_BYTES, "memory_free_bytes")
    checks.check_range(status.started_unix_ms, 0, checks.MAX_UNIX_MS, "started_unix_ms")
    checks.check_range(status.idle_s, 0.0, _MAX_S, "idle_s")
    checks.check_count(status.terms, MAX_TERMS, "terms")
    for name in status.terms:
        partitions.parse(name, "terms")
    checks.check_count(status.models, MAX_KNOWN, "models")
    checks.check_count(status.store_jobs, MAX_JOBS, "store_jobs")
    for job in status.store_jobs:
        check_job(job)
    known: set[str] = set()
    own_ids = {"", *worker_ids(status.host_id)}
    for model in status.models:
        check_model(model)
        if model.worker_id not in own_ids:
            raise InvalidArgument("a model is loaded as another host's worker", field="models.worker_id")
        if model.card.name in known:
            raise InvalidArgument(f"models has {model.card.name!r} twice", field="models.name")
        known.add(model.card.name)


def check_model(model: host_pb2.HostedModel) -> None:
    """See that a host could say this of a model.

    Raises:
        InvalidArgument: naming the field.
    """
    check_card(model.card)
    checks.check_known(model.state, model_pb2.ModelState, "models.state")
    checks.check_text(model.reason, MAX_REASON_BYTES, "models.reason")
    checks.check_range(model.since_unix_ms, 0, checks.MAX_UNIX_MS, "models.since_unix_ms")
    checks.check_text(model.path, MAX_PATH_BYTES, "models.path")
    checks.check_text(model.mmproj_path, MAX_PATH_BYTES, "models.mmproj_path")
    if model.worker_id:
        checks.check_token(model.worker_id, "models.worker_id")
    checks.check_range(model.needs_bytes, 0, MAX_BYTES, "models.needs_bytes")
    checks.check_range(model.load_s, 0.0, _MAX_S, "models.load_s")
    checks.check_range(model.retry_unix_ms, 0, checks.MAX_UNIX_MS, "models.retry_unix_ms")
    checks.check_count(model.aliases, MAX_ALIASES, "models.aliases")
    for alias in model.aliases:
        checks.check_model_name(alias, field="models.aliases")


def check_job(job: model_pb2.StoreJob) -> None:
    """See that a host could say this of a job of its store.

    Raises:
        InvalidArgument: naming the field.
    """
    checks.check_token(job.job_id, "store_jobs.job_id")
    checks.check_token(job.host_id, "store_jobs.host_id")
    checks.check_known(job.kind, model_pb2.StoreJobKind, "store_jobs.kind")
    checks.check_known(job.state, model_pb2.StoreJobState, "store_jobs.state")
    if job.name:
        checks.check_model_name(job.name, field="store_jobs.name")
    texts = (job.source, job.doing, job.digest, job.reason, job.field, job.message)
    for text in texts:
        checks.check_text(text, MAX_JOB_TEXT_BYTES, "store_jobs")
    checks.check_count(job.differing, MAX_KNOWN, "store_jobs.differing")


# The best state first: what a model's state is where hosts differ.
_BEST_FIRST = (
    model_pb2.MODEL_STATE_READY,
    model_pb2.MODEL_STATE_LOADING,
    model_pb2.MODEL_STATE_REGISTERED,
    model_pb2.MODEL_STATE_UNLOADING,
    model_pb2.MODEL_STATE_FAILED,
)


def best_state(states: Iterable[model_pb2.ModelState.ValueType]) -> model_pb2.ModelState.ValueType:
    """The best of a model's states, at least one, on several hosts."""
    return min(states, key=_BEST_FIRST.index)


def same_file(wanted: str, digest: str) -> bool:
    """True if a model of `digest` may serve what wants `wanted`; "" is one that was not told."""
    return not (wanted and digest) or wanted == digest


def chosen_digest(ranked: Iterable[tuple[str, int]]) -> str:
    """Digest of the file that a name stands for on several hosts: the one in the best state of all,
    of those the one that most hosts have in it, then the first by its digest.

    Args:
        ranked: at least one (digest, rank of its state: lower is better).
    """
    places = Counter(ranked)
    return min(places, key=lambda place: (place[1], -places[place], place[0]))[0]


def as_model(places: Mapping[str, host_pb2.HostedModel]) -> model_pb2.Model:
    """A model as the hosts that know it report it, by their ids: at least one."""
    digest = chosen_digest((h.card.digest, _BEST_FIRST.index(h.state)) for h in places.values())
    meant = [hosted for _, hosted in sorted(places.items()) if hosted.card.digest == digest]
    best = min(meant, key=lambda hosted: _BEST_FIRST.index(hosted.state))
    model = model_pb2.Model(
        card=best.card,
        workers=sum(hosted.state == model_pb2.MODEL_STATE_READY for hosted in places.values()),
        state=best.state,
        reason=best.reason if best.state in _TOLD_WHY else "",
        aliases=sorted({alias for hosted in places.values() for alias in hosted.aliases}),
        is_default=any(hosted.is_default for hosted in places.values()),
        is_pinned=any(hosted.is_pinned for hosted in places.values()),
    )
    # Those of every host: where they differ, a request for one goes where it is.
    adapters = {a.name: a for _, hosted in sorted(places.items(), reverse=True) for a in hosted.card.adapters}
    model.card.ClearField("adapters")
    model.card.adapters.extend(adapters[name] for name in sorted(adapters))
    for host_id, hosted in sorted(places.items()):
        model.places.add(
            host_id=host_id,
            state=hosted.state,
            reason=hosted.reason,
            since_unix_ms=hosted.since_unix_ms,
            needs_bytes=hosted.needs_bytes,
            retry_unix_ms=hosted.retry_unix_ms,
            digest=hosted.card.digest,
            path=hosted.path,
            mmproj_path=hosted.mmproj_path,
        )
    return model
