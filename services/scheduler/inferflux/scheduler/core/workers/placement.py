"""Placement: the choice of the worker that takes a request (pure).

Among the workers that have the model, are ready, may run one more and have the KV cells, the one whose
running requests hold the fewest tokens. Prompt tokens that a worker has cached count against that load: one
that is not computed again is worth `SAVED_WORTH` that others hold. So a request goes where its prefix is,
unless that worker holds many more tokens than the emptiest. However hot a prefix is, its requests put no
worker further ahead than `SAVED_WORTH` of them: each holds the prefix.

A worker in another zone than a request's gateway counts as if it held `FAR_TOKENS` more. So requests stay
near while the workers there are not much busier, and cross where they would wait.

A worker that is n times slower than the fastest of the model (`slowness.py`) counts as if it held n times as
much, the request's own tokens among them. So a worker of ten times the speed comes to hold ten times as much.
Between workers of one speed that changes nothing.

A prefill worker takes a whole request only where no other worker can: it is kept for prompts (`split.py`).

Workers are kept sorted by load, per model, size and slowness, so that finding one does not cost more with a
thousand of them, as long as they come in a few sizes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.hosts import same_file
from inferflux.common.contract.requests.kv_cells import cells_of, reserved_cells
from inferflux.common.contract.requests.worker_pools import DEFAULT, may_run_in
from inferflux.scheduler.core.types.jobs import Demand, Job
from inferflux.scheduler.core.types.ranking import Ranking
from inferflux.v1 import scheduler_pb2

from .slots import Start, WorkerSlots


class Size(NamedTuple):
    """Size of a worker: a request that one could run, all of its size could."""

    context_length: int
    kv_cells: int
    # Whether it constrains answers.
    can_constrain: bool = False
    pool: str = DEFAULT
    # Of the model's file.
    digest: str = ""
    # Digests of the adapters that it has.
    adapters: frozenset[str] = frozenset()
    # Empty: not known.
    zone: str = ""


# What a prompt token that is not computed again is worth, in tokens that running requests hold. Simulated
# conversations with room for all compute 1.8 times what their turns add with 1, 1.3 times with 4, 1.1 times
# with 8, and less with 16, for which their first tokens come sooner: docs/decisions/prefix-waits.md.
SAVED_WORTH = 16
# What being in another zone is worth, in tokens that running requests hold: a few requests.
FAR_TOKENS = 2048

_LIVE = (scheduler_pb2.WORKER_STATE_READY, scheduler_pb2.WORKER_STATE_LOADING)


def cells_wanted(job: Job, context_length: int) -> int:
    """KV cells to look for before a request runs: never more than it may come to hold.

    So an empty worker always has them, if the request fits it at all.
    """
    soon = reserved_cells(job.prompt_tokens, job.known_tokens, job.max_tokens)
    return min(soon, cells_at_most(job, context_length))


def cells_wanted_on(job: Job, worker: WorkerSlots) -> int:
    """KV cells to look for before a request runs on this worker."""
    return cells_wanted(job, worker.context_lengths.get(job.model, 0))


def cells_at_most(job: Job, context_length: int) -> int:
    """KV cells a request may come to hold."""
    return cells_of(job.prompt_tokens, job.max_tokens or max(0, context_length - job.prompt_tokens))


def fits_context(job: Job, context_length: int) -> bool:
    """True if prompt and answer fit; a context length of 0 is not known yet."""
    wanted = job.longest_text or job.prompt_tokens + new_tokens_at_least(job)
    return not context_length or wanted <= context_length


def new_tokens_at_least(job: Job) -> int:
    """New tokens a context must have room for: all that are asked for, or else one more than there are."""
    return job.max_tokens or job.generated_tokens + 1


def fits(job: Job, worker: WorkerSlots) -> bool:
    """True if the worker could run it, were there room: it has the context, the memory and the ability, and
    its pool is one that the job may run in.
    """
    return fits_size(job, size_of(worker, job.model))


def fits_size(job: Job, size: Size) -> bool:
    if not may_run_in(size.pool, job.worker_pools) or (job.is_constrained and not size.can_constrain):
        return False
    if not same_file(job.request.model_digest, size.digest):
        return False
    if job.adapter_digest and job.adapter_digest not in size.adapters:
        return False
    context_length = size.context_length
    return fits_context(job, context_length) and cells_at_most(job, context_length) <= size.kv_cells


def size_of(worker: WorkerSlots, model: str) -> Size:
    return Size(
        worker.context_lengths.get(model, 0),
        worker.kv_cells,
        model in worker.constraining,
        worker.pool,
        worker.digests.get(model, ""),
        worker.adapters.get(model, frozenset()),
        worker.zone,
    )


def _far(job: Job, zone: str) -> int:
    """Tokens that a worker of this zone counts as holding more, for this job."""
    return FAR_TOKENS if job.is_far_from(zone) else 0


def slowness_of(worker: WorkerSlots, model: str) -> float:
    """How many times slower than the fastest worker of the model it counts as."""
    return worker.slowness.get(model, 1.0)


def _own(job: Job) -> int:
    """Tokens that a job would hold, on any worker."""
    return reserved_cells(job.prompt_tokens, job.known_tokens, job.max_tokens)


def _busy(job: Job, worker: WorkerSlots) -> float:
    """How busy a worker would be with this job: tokens that it would count as holding, times its slowness."""
    held = worker.load + _far(job, worker.zone) + _own(job)
    return held * slowness_of(worker, job.model)


def _cost(job: Job, worker: WorkerSlots, other: WorkerSlots) -> float:
    """The same, less what the job's prompt saves there.

    A cached token saves what the other worker would take to compute it. If that one is faster, the rest of
    the job takes longer here: so much less is saved.
    """
    cached, theirs = job.cached_on.get(worker.worker_id, 0), slowness_of(other, job.model)
    slower = max(0.0, slowness_of(worker, job.model) - theirs)
    saved = cached * theirs - max(0, _own(job) - cached) * slower
    return _busy(job, worker) - SAVED_WORTH * max(0.0, saved)


def _may_serve(worker: WorkerSlots, model: str, demand: Demand) -> bool:
    is_file = same_file(demand.digest, worker.digests.get(model, ""))
    return is_file and may_run_in(worker.pool, demand.pools)


_ANYWHERE = Demand()


class _Group(NamedTuple):
    """Workers that compare by their load alone."""

    size: Size
    slowness: float
    is_prefill: bool = False
    has_far_experts: bool = False


# Its load, and the worker.
_Entry = tuple[int, str, WorkerSlots]


@dataclass(slots=True)
class _ModelIndex:
    """The workers that have a model, by id."""

    # Those that may run one more; no group is without workers.
    open: dict[_Group, Ranking[_Entry]] = field(default_factory=dict)
    # Ready or loading.
    live: dict[str, WorkerSlots] = field(default_factory=dict)
    # Of those, the ones that are meant for prompts.
    prefill: dict[str, WorkerSlots] = field(default_factory=dict)
    # Those on which requests wait to resume, and of these the ones that have a slot.
    waiting: dict[str, WorkerSlots] = field(default_factory=dict)
    resumable: dict[str, WorkerSlots] = field(default_factory=dict)
    # Of those that are ready: how many there are of each size, and their slots in all.
    sizes: Counter[Size] = field(default_factory=Counter)
    slots: int = 0


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Key that a worker was sorted by.

    Attributes:
        groups: by model.
        slots: None unless it is ready.
        entry: None unless it may run one more.
    """

    groups: dict[str, _Group]
    slots: int | None
    entry: _Entry | None


class Placement:
    """An index over workers. The slot table tells it of every change. What has changed is sorted in anew with
    the next question."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelIndex] = defaultdict(_ModelIndex)
        self._sorted: dict[str, _Sorted] = {}
        self._unsorted: dict[str, WorkerSlots] = {}

    def changed(self, worker: WorkerSlots) -> None:
        """Something that placement goes by is not as it was."""
        self._unsorted[worker.worker_id] = worker

    def removed(self, worker: WorkerSlots) -> None:
        """Forget a worker."""
        self._unsorted.pop(worker.worker_id, None)
        self._take_out(worker.worker_id)

    def _of(self, model: str) -> _ModelIndex:
        """A model's workers, as they are now."""
        while self._unsorted:
            _worker_id, worker = self._unsorted.popitem()
            self._take_out(worker.worker_id)
            self._sort_in(worker)
        return self._models.get(model) or _ModelIndex()

    def _sort_in(self, worker: WorkerSlots) -> None:
        worker_id = worker.worker_id
        place = _Sorted(
            groups={
                model: _Group(
                    size_of(worker, model),
                    slowness_of(worker, model),
                    worker.is_prefill,
                    model in worker.far_experts,
                )
                for model in worker.context_lengths
            },
            slots=worker.slots if worker.state == scheduler_pb2.WORKER_STATE_READY else None,
            entry=(worker.load, worker_id, worker) if worker.has_slot_for(Start.NEW) else None,
        )
        self._sorted[worker_id] = place
        for model, group in place.groups.items():
            index = self._models[model]
            if worker.state in _LIVE:
                index.live[worker_id] = worker
                if worker.is_prefill:
                    index.prefill[worker_id] = worker
            if worker.has_waiting:
                index.waiting[worker_id] = worker
                if worker.has_slot_for(Start.RESUME):
                    index.resumable[worker_id] = worker
            if place.slots is not None:
                index.sizes[group.size] += 1
                index.slots += place.slots
            if place.entry is not None:
                index.open.setdefault(group, Ranking()).add(place.entry)

    def _take_out(self, worker_id: str) -> None:
        place = self._sorted.pop(worker_id, None)
        if place is None:
            return
        for model, group in place.groups.items():
            index = self._models[model]
            for workers in (index.live, index.prefill, index.waiting, index.resumable):
                workers.pop(worker_id, None)
            if place.slots is not None:
                index.slots -= place.slots
                index.sizes[group.size] -= 1
                if not index.sizes[group.size]:
                    del index.sizes[group.size]
            if place.entry is not None:
                index.open[group].remove(place.entry)
                if not index.open[group]:
                    del index.open[group]

    def slots_of(self, model: str) -> int:
        """Number of requests of a model that may run at once, on all workers that are ready."""
        return self._of(model).slots

    def sizes(self, model: str) -> Collection[Size]:
        """Sizes of the workers that are ready and have the model."""
        return self._of(model).sizes

    def is_served(self, model: str, demand: Demand = _ANYWHERE) -> bool:
        """True if a worker that is ready or loading has the model, in one of these pools if any are named, of
        this file if one is."""
        live = self._of(model).live
        return any(_may_serve(w, model, demand) for w in live.values()) if any(demand) else bool(live)

    def live(self, model: str) -> Collection[WorkerSlots]:
        """Workers that are ready or loading and have the model."""
        return self._of(model).live.values()

    def has_waiting(self, model: str) -> bool:
        """True if requests wait to resume on a worker that has the model."""
        return bool(self._of(model).waiting)

    def waiting(self, model: str) -> list[WorkerSlots]:
        """Workers that have the model and requests that wait to resume: those that have changed longest ago
        first."""
        return list(self._of(model).waiting.values())

    def resumable(self, model: str) -> list[WorkerSlots]:
        """Return the workers with requests waiting to resume that have a free slot."""
        return list(self._of(model).resumable.values())

    def choose(self, job: Job, but: Collection[Size] = ()) -> WorkerSlots | None:
        """The worker for a job, None if none can take it now.

        Args:
            but: no worker of these sizes.
        """
        avoids = job.retries.avoids
        chosen = self._emptiest(job, but, is_prefill=False) or self._emptiest(job, but, is_prefill=True)
        if chosen is None:
            return None if avoids is None else self._open_worker(avoids, job, but, is_avoided=True)
        return self._with_prefix(job, chosen, but)

    def choose_prefill(self, job: Job, but: Collection[Size] = ()) -> WorkerSlots | None:
        """The prefill worker for the prompt of a job; takes and returns what `choose` does."""
        chosen = self._emptiest(job, but, is_prefill=True)
        return None if chosen is None else self._with_prefix(job, chosen, but)

    def has_prefill(self, model: str) -> bool:
        """True if a prefill worker that is ready or loading has the model."""
        return bool(self._of(model).prefill)

    def _emptiest(self, job: Job, but: Collection[Size], *, is_prefill: bool) -> WorkerSlots | None:
        """The least busy worker that can take a job now, where it was not lost before."""
        best: tuple[float, bool, str, WorkerSlots] | None = None
        for group, ranking in self._of(job.model).open.items():
            size = group.size
            if group.is_prefill != is_prefill or size in but or not fits_size(job, size):
                continue
            wanted = cells_wanted(job, size.context_length)
            for _load, worker_id, worker in ranking:
                if wanted > worker.free_cells:
                    break  # and those after it have more to hold
                if worker_id == job.retries.avoids:
                    continue
                busy = _busy(job, worker)
                if best is None or (busy, group.has_far_experts, worker_id) < best[:3]:
                    best = busy, group.has_far_experts, worker_id, worker
                break
        return None if best is None else best[3]

    def _with_prefix(self, job: Job, emptiest: WorkerSlots, but: Collection[Size]) -> WorkerSlots:
        """The emptiest worker, or one of its kind that saves more tokens of the prompt than it holds more."""
        if not job.cached_on:
            return emptiest
        holders = (self._open_worker(holder, job, but) for holder in job.cached_on)
        return min(
            (emptiest, *(h for h in holders if h is not None and h.is_prefill == emptiest.is_prefill)),
            key=lambda worker: (_cost(job, worker, emptiest), _busy(job, worker), worker.worker_id),
        )

    def better_full(self, job: Job, chosen: WorkerSlots) -> WorkerSlots | None:
        """A worker that would take a job before the `chosen` one, had it room: it has more of the prompt.

        Returns:
            None if no worker is better. One that takes nothing new, whatever room it has, is none.
        """
        live = self._of(job.model).live
        most = job.cached_on.get(chosen.worker_id, 0)
        best = _cost(job, chosen, chosen), chosen.worker_id
        better: WorkerSlots | None = None
        for worker_id, cached in job.cached_on.items():
            worker = live.get(worker_id)
            if worker is None or cached <= most or worker_id == job.retries.avoids:
                continue
            if worker.is_prefill and not chosen.is_prefill:
                continue
            rank = _cost(job, worker, chosen), worker_id
            if worker.admits(Start.NEW) and fits(job, worker) and rank < best:
                best, better = rank, worker
        return better

    def _open_worker(
        self, worker_id: str, job: Job, but: Collection[Size], *, is_avoided: bool = False
    ) -> WorkerSlots | None:
        """A worker, if it could take the job now and nothing speaks against it.

        Args:
            is_avoided: even where the job was lost there.
        """
        place = self._sorted.get(worker_id)
        group = place.groups.get(job.model) if place is not None else None
        if place is None or place.entry is None or group is None:
            return None
        if worker_id == job.retries.avoids and not is_avoided:
            return None
        worker, size = place.entry[2], group.size
        can_take = size not in but and fits_size(job, size)
        return worker if can_take and cells_wanted(job, size.context_length) <= worker.free_cells else None

    def open_to(self, job: Job) -> set[Size]:
        """Sizes of the workers that may run one more, and could run this one, were there room."""
        return {group.size for group in self._of(job.model).open if fits_size(job, group.size)}

    def has_open(self, model: str) -> bool:
        """True if a worker that has the model may run one more."""
        return bool(self._of(model).open)

    def why_never(self, job: Job) -> InvalidArgument | None:
        """Reason why no live worker could take the job even if it were empty; None if one could, or may."""
        # Asked for each job: with hundreds of workers there are few sizes.
        if any(fits_size(job, size) for size in self._of(job.model).sizes):
            return None
        workers = [w for w in self.live(job.model) if _may_serve(w, job.model, job.demand)]
        if not workers:
            return None
        largest, longest = 0, 0
        can_constrain, has_adapter = False, not job.adapter_digest
        for worker in workers:
            context_length = worker.context_lengths.get(job.model, 0)
            has_said = worker.kv_cells and context_length
            if not has_said and worker.state != scheduler_pb2.WORKER_STATE_READY:
                return None
            if fits(job, worker):
                return None
            can_constrain |= job.model in worker.constraining
            has_adapter |= job.adapter_digest in worker.adapters.get(job.model, ())
            largest, longest = max(largest, worker.kv_cells), max(longest, context_length)
        if not has_adapter:
            message = f"no worker of {job.model} has the adapter {job.request.adapter!r}"
            return InvalidArgument(message, field="adapter", reason="UNKNOWN_ADAPTER")
        if job.is_constrained and not can_constrain:
            message = f"no worker of {job.model} can constrain answers"
            return InvalidArgument(message, field="params.constraint", reason="CONSTRAINT_UNSUPPORTED")
        message = (
            f"{job.prompt_tokens} prompt tokens and {new_tokens_at_least(job)} new ones do not fit any "
            f"worker of {job.model}: "
            f"the longest context is {longest} tokens, the largest KV cache {largest} cells"
        )
        return InvalidArgument(message, field="params.max_tokens", reason="REQUEST_TOO_LARGE")
