"""Which worker takes a request (pure).

Among the workers that have the model, are ready and may run one more, the one whose running requests hold the
fewest tokens, if it has the KV cells. Workers are kept sorted by that load, per model and size, so that
finding one does not cost more with a thousand of them, as long as they come in a few sizes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection

from inferflux.common.kv_cells import cells_of, committed_cells
from inferflux.v1 import scheduler_pb2

from .jobs import Job
from .ranking import Ranking
from .slots import WorkerSlots

# Context length and KV cells: what one worker could run, all of its size could.
Size = tuple[int, int]

_LIVE = (scheduler_pb2.WORKER_STATE_READY, scheduler_pb2.WORKER_STATE_LOADING)


def cells_wanted(job: Job, context_length: int) -> int:
    """KV cells to look for before a request runs: never more than it may come to hold.

    So an empty worker always has them, if the request fits it at all.
    """
    soon = committed_cells(job.prompt_tokens, job.known_tokens, job.max_tokens)
    return min(soon, cells_at_most(job, context_length))


def cells_wanted_on(job: Job, worker: WorkerSlots) -> int:
    """KV cells to look for before a request runs on this worker."""
    return cells_wanted(job, worker.context_lengths.get(job.model, 0))


def cells_at_most(job: Job, context_length: int) -> int:
    """KV cells a request may come to hold."""
    return cells_of(job.prompt_tokens, job.max_tokens or max(0, context_length - job.prompt_tokens))


def fits_context(job: Job, context_length: int) -> bool:
    """Whether prompt and answer fit; a context length of 0 is not known yet."""
    return not context_length or job.prompt_tokens + new_tokens_at_least(job) <= context_length


def new_tokens_at_least(job: Job) -> int:
    """New tokens a context must have room for: all that are asked for, or else one more than there are."""
    return job.max_tokens or job.generated_tokens + 1


def fits(job: Job, worker: WorkerSlots) -> bool:
    """Whether the worker could run it, were there room: it has the context and the memory."""
    return fits_size(job, size_of(worker, job.model))


def fits_size(job: Job, size: Size) -> bool:
    context_length, kv_cells = size
    return fits_context(job, context_length) and cells_at_most(job, context_length) <= kv_cells


def size_of(worker: WorkerSlots, model: str) -> Size:
    return worker.context_lengths.get(model, 0), worker.kv_cells


# Its load, and the worker.
_Entry = tuple[int, str, WorkerSlots]


class Placement:
    """An index over workers. The slot table tells it of every change. What has changed is sorted in anew with
    the next question."""

    def __init__(self) -> None:
        # By model, then size; there is none without workers.
        self._open: dict[str, dict[Size, Ranking[_Entry]]] = defaultdict(dict)
        self._entries: dict[str, list[tuple[str, Size, _Entry]]] = {}
        self._live: dict[str, dict[str, WorkerSlots]] = defaultdict(dict)
        self._models: dict[str, list[str]] = {}
        # Of workers that are ready: by model in all, and by worker, its models and its slots.
        self._slots: Counter[str] = Counter()
        self._counted: dict[str, tuple[list[str], int]] = {}
        # Of each model, by id: workers on which requests wait to resume, and those that have a slot for them.
        self._waiting: dict[str, dict[str, WorkerSlots]] = defaultdict(dict)
        self._resumable: dict[str, dict[str, WorkerSlots]] = defaultdict(dict)
        self._unsorted: dict[str, WorkerSlots] = {}

    def changed(self, worker: WorkerSlots) -> None:
        """Something that placement goes by is not as it was."""
        self._unsorted[worker.worker_id] = worker

    def removed(self, worker: WorkerSlots) -> None:
        """Forget a worker."""
        self._unsorted.pop(worker.worker_id, None)
        self._take_out(worker.worker_id)

    def _sort(self) -> None:
        """Sort in what has changed."""
        while self._unsorted:
            _worker_id, worker = self._unsorted.popitem()
            self._take_out(worker.worker_id)
            self._sort_in(worker)

    def _sort_in(self, worker: WorkerSlots) -> None:
        worker_id = worker.worker_id
        models = self._models[worker_id] = list(worker.context_lengths)
        self._count_slots(worker)
        if worker.state in _LIVE:
            for model in models:
                self._live[model][worker_id] = worker
        if worker.has_waiting:
            for model in models:
                self._waiting[model][worker_id] = worker
                if worker.can_resume:
                    self._resumable[model][worker_id] = worker
        if worker.is_open:
            entry = (worker.load, worker_id, worker)
            entries = self._entries[worker_id] = [(model, size_of(worker, model), entry) for model in models]
            for model, size, _entry in entries:
                self._open[model].setdefault(size, Ranking()).add(entry)

    def _take_out(self, worker_id: str) -> None:
        self._close(worker_id)
        self._uncount_slots(worker_id)
        for model in self._models.pop(worker_id, ()):
            for index in (self._live, self._waiting, self._resumable):
                index[model].pop(worker_id, None)

    def _close(self, worker_id: str) -> None:
        for model, size, entry in self._entries.pop(worker_id, ()):
            self._open[model][size].remove(entry)
            if not self._open[model][size]:
                del self._open[model][size]

    def _count_slots(self, worker: WorkerSlots) -> None:
        self._uncount_slots(worker.worker_id)
        if worker.state == scheduler_pb2.WORKER_STATE_READY:
            models = self._models.get(worker.worker_id, [])
            self._counted[worker.worker_id] = models, worker.slots
            self._slots.update(dict.fromkeys(models, worker.slots))

    def _uncount_slots(self, worker_id: str) -> None:
        models, slots = self._counted.pop(worker_id, ([], 0))
        for model in models:
            self._slots[model] -= slots
            if not self._slots[model]:
                del self._slots[model]

    def slots_of(self, model: str) -> int:
        """How many requests of a model may run at once, on all workers that are ready."""
        self._sort()
        return self._slots[model]

    def is_served(self, model: str) -> bool:
        """Whether a worker that is ready or loading has the model."""
        self._sort()
        return bool(self._live.get(model))

    def live(self, model: str) -> Collection[WorkerSlots]:
        """Workers that are ready or loading and have the model."""
        self._sort()
        return self._live.get(model, {}).values()

    def has_waiting(self, model: str) -> bool:
        """Whether requests wait to resume on a worker that has the model."""
        self._sort()
        return bool(self._waiting.get(model))

    def waiting(self, model: str) -> list[WorkerSlots]:
        """Workers that have the model and requests that wait to resume: those that have changed longest ago
        first."""
        self._sort()
        return list(self._waiting.get(model, {}).values())

    def resumable(self, model: str) -> list[WorkerSlots]:
        """Those of them that have a free slot."""
        self._sort()
        return list(self._resumable.get(model, {}).values())

    def choose(self, job: Job, but: Collection[Size] = ()) -> WorkerSlots | None:
        """The worker for a job, None if none can take it now.

        Args:
            but: no worker of these sizes.
        """
        best: _Entry | None = None
        avoided: WorkerSlots | None = None
        for size in self.open_to(job):
            wanted = cells_wanted(job, size[0])
            for entry in self._open[job.model][size] if size not in but else ():
                load, worker_id, worker = entry
                if wanted > worker.free_cells:
                    break  # and those after it have more to hold
                if worker_id == job.avoids:
                    avoided = worker
                    continue
                if best is None or (load, worker_id) < best[:2]:
                    best = entry
                break
        return best[2] if best is not None else avoided

    def open_to(self, job: Job) -> list[Size]:
        """Sizes of the workers that may run one more, and could run this one, were there room."""
        self._sort()
        return [size for size in self._open.get(job.model, ()) if fits_size(job, size)]

    def has_open(self, model: str, but: Collection[Size]) -> bool:
        """Whether workers of other sizes than these may run one more."""
        self._sort()
        return any(size not in but for size in self._open.get(model, ()))

    def why_never(self, job: Job) -> str:
        """Why no live worker could take the job even if it were empty; "" if one could, or may."""
        if not self.is_served(job.model):
            return ""
        largest, longest = 0, 0
        for worker in self.live(job.model):
            context_length = worker.context_lengths.get(job.model, 0)
            has_said = worker.kv_cells and context_length
            if not has_said and worker.state != scheduler_pb2.WORKER_STATE_READY:
                return ""
            if fits(job, worker):
                return ""
            largest, longest = max(largest, worker.kv_cells), max(longest, context_length)
        return (
            f"{job.prompt_tokens} prompt tokens and {new_tokens_at_least(job)} new ones do not fit any "
            f"worker of {job.model}: "
            f"the longest context is {longest} tokens, the largest KV cache {largest} cells"
        )
