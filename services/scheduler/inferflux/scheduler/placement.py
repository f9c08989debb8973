"""Which worker takes a request (pure).

Among the workers that have the model, are ready and may run one more, the one whose running requests hold the
fewest tokens, if it has the KV cells. Workers are kept sorted by that load, per model, so that finding one
does not cost more with a thousand of them.
"""

from __future__ import annotations

from collections import defaultdict

from inferflux.common.kv_cells import cells_of, committed_cells
from inferflux.v1 import scheduler_pb2

from .jobs import Job
from .ranking import Ranking
from .slots import WorkerSlots

_LIVE = (scheduler_pb2.WORKER_STATE_READY, scheduler_pb2.WORKER_STATE_LOADING)


def cells_wanted(job: Job) -> int:
    """KV cells to look for before a request runs."""
    return committed_cells(job.prompt_tokens, job.known_tokens, job.max_tokens)


def cells_at_most(job: Job, context_length: int) -> int:
    """KV cells a request may come to hold."""
    return cells_of(job.prompt_tokens, job.max_tokens or max(0, context_length - job.prompt_tokens))


def fits_context(job: Job, context_length: int) -> bool:
    """Whether prompt and answer fit; a context length of 0 is not known yet."""
    return not context_length or job.prompt_tokens + max(1, job.max_tokens) <= context_length


def fits(job: Job, worker: WorkerSlots) -> bool:
    """Whether the worker could run it, were there room: it has the context and the memory."""
    context_length = worker.context_lengths.get(job.model, 0)
    return fits_context(job, context_length) and cells_at_most(job, context_length) <= worker.kv_cells


class Placement:
    """An index over workers; `update` must follow every change of one."""

    def __init__(self) -> None:
        self._open: dict[str, Ranking[tuple[int, str, WorkerSlots]]] = defaultdict(Ranking)
        self._entries: dict[str, list[tuple[str, tuple[int, str, WorkerSlots]]]] = {}
        self._live: dict[str, dict[str, WorkerSlots]] = defaultdict(dict)
        self._models: dict[str, list[str]] = {}
        # No worker of the model has ever had more KV cells.
        self._largest: dict[str, int] = defaultdict(int)

    def update(self, worker: WorkerSlots) -> None:
        """Sort a worker in anew."""
        worker_id = worker.worker_id
        for model, entry in self._entries.pop(worker_id, ()):
            self._open[model].remove(entry)
        if worker.is_open:
            models = self._models.get(worker_id, ())
            entry = (worker.load, worker_id, worker)
            self._entries[worker_id] = [(model, entry) for model in models]
            for model in models:
                self._open[model].add(entry)

    def update_models(self, worker: WorkerSlots) -> None:
        """Like `update`, after a heartbeat: what it serves, and whether, may have changed."""
        self.remove(worker)
        self._models[worker.worker_id] = models = list(worker.context_lengths)
        for model in models:
            self._largest[model] = max(self._largest[model], worker.kv_cells)
            if worker.state in _LIVE:
                self._live[model][worker.worker_id] = worker
        self.update(worker)

    def remove(self, worker: WorkerSlots) -> None:
        """Forget a worker."""
        worker_id = worker.worker_id
        for model, entry in self._entries.pop(worker_id, ()):
            self._open[model].remove(entry)
        for model in self._models.pop(worker_id, ()):
            self._live[model].pop(worker_id, None)

    def is_served(self, model: str) -> bool:
        """Whether a worker that is ready or loading has the model."""
        return bool(self._live.get(model))

    def choose(self, job: Job) -> WorkerSlots | None:
        """The worker for a job, None if none can take it now."""
        if job.model not in self._open:
            return None
        largest = self._largest[job.model]
        wanted = cells_wanted(job)
        avoided: WorkerSlots | None = None
        for load, _worker_id, worker in self._open[job.model]:
            if load + wanted > largest:
                break  # and those after it have more to hold
            if wanted <= worker.free_cells and fits(job, worker):
                if worker.worker_id != job.avoids:
                    return worker
                avoided = worker
        return avoided

    def why_never(self, job: Job) -> str:
        """Why no live worker could take the job even if it were empty; "" if one could, or may."""
        largest, longest = 0, 0
        for worker in self._live.get(job.model, {}).values():
            context_length = worker.context_lengths.get(job.model, 0)
            if not worker.kv_cells or not context_length:
                return ""  # it has yet to say
            if fits_context(job, context_length) and cells_at_most(job, context_length) <= worker.kv_cells:
                return ""
            largest, longest = max(largest, worker.kv_cells), max(longest, context_length)
        if not longest:
            return ""
        return (
            f"{job.prompt_tokens} prompt tokens and {job.max_tokens} new ones do not fit any worker of "
            f"{job.model}: "
            f"the longest context is {longest} tokens, the largest KV cache {largest} cells"
        )
