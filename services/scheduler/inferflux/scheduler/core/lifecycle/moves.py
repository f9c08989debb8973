"""Moves of requests to other workers, their state ahead of them (pure).

The other worker is told to fetch the state while the request goes on where it is. Once all but the last
tokens are there, the request is dropped, its worker sends the rest, and the other one goes on with it. Should
the state not come, a request that had to leave leaves as ever: its state is searched for in the exchange, or
computed again. Any other stays.

A new leader knows of no move. It finds each request where it runs, or reads what it has emitted.
"""

from __future__ import annotations

from collections.abc import Collection

from inferflux.common.contract.callers.cache_scope import cache_scope_of, prefix_tokens
from inferflux.common.contract.errors import FailedPrecondition, InvalidArgument, NotFound
from inferflux.common.contract.partitions import UNKNOWN_REQUEST
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.facets import RequeueReason
from inferflux.scheduler.core.types.jobs import Job, JobState, RequestKey
from inferflux.scheduler.core.types.moves import DONE, Move, Why
from inferflux.scheduler.core.workers.placement import Size, cells_wanted_on, fits
from inferflux.scheduler.core.workers.slots import Start, WorkerSlots
from inferflux.scheduler.core.workers.split import Decision, Side, decide
from inferflux.scheduler.core.workers.transfers import can_take, has_takable_state, transfer_s
from inferflux.v1 import scheduler_pb2, worker_pb2

from .state import SchedulerState

# Of a worker that has not measured its speed: slower than any that is of use.
_SLOWEST = 50.0
_LONGEST_PROMPT_S = 600.0
_ON_WORKER = (JobState.RUNNING, JobState.PARKED)


class Moves:
    """Begins moves, and takes each to its end."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    # Beginning

    def begin(self, job: Job, to: WorkerSlots, why: Why, now: float) -> list[Action]:
        """Have a worker fetch the state of a request, which goes on where it is.

        Raises:
            KeyError: no worker has the request.
        """
        giver = self._state.table.workers[job.worker_id or ""]
        limit_s = self._state.limits.move_limit_s
        if why is Why.SPLIT:
            limit_s += min(_LONGEST_PROMPT_S, job.prompt_tokens / _SLOWEST)
        source = scheduler_pb2.KvSource()
        source.CopyFrom(giver.status.kv_source)
        move = Move(
            why=why,
            from_id=giver.worker_id,
            source=source,
            epoch=job.epoch,
            to_id=to.worker_id,
            to_incarnation=to.incarnation,
            began_s=now,
            until_s=now + limit_s,
        )
        self._state.moves.begin(job, move, cells_wanted_on(job, to))
        command = worker_pb2.WorkerCommand()
        take = command.take_state
        take.tenant, take.request_id = job.key
        take.origin.source.CopyFrom(source)
        take.origin.epoch = job.epoch
        take.limit_ms = round(limit_s * 1000)
        take.traceparent = job.request.traceparent
        if cached := job.cached_on.get(to.worker_id, 0):
            take.token_ids = prefix_tokens(job.request, cached)
            take.cache_scope = cache_scope_of(job.request)
        return [self._state.command(to.worker_id, command)]

    def begin_named(
        self, key: RequestKey, worker_id: str, now: float
    ) -> tuple[list[Action], RequestKey, Move]:
        """Move a request for an operator.

        Args:
            key: its tenant may be empty: then it is the one that has such a request.

        Returns:
            The actions, the whole key, and the move, which comes to say what became of it.

        Raises:
            NotFound: there is no such request, or no such worker.
            InvalidArgument: several tenants have such a request.
            FailedPrecondition: it cannot be moved there.
        """
        job = self._named(key)
        to = self._state.table.get(worker_id)
        if to is None:
            raise NotFound(f"no worker {worker_id} is alive", reason="NO_SUCH_WORKER")
        if why := self._why_not(job, to):
            raise FailedPrecondition(f"request {job.key.request_id} cannot be moved: {why}")
        out = self.begin(job, to, Why.ADMIN, now)
        if job.move is None:
            raise KeyError(job.key)
        return out, job.key, job.move

    def _named(self, key: RequestKey) -> Job:
        if key.tenant:
            found = [job for job in (self._state.jobs.get(key),) if job is not None]
        else:
            found = [job for job in self._state.jobs.values() if job.key.request_id == key.request_id]
        if not found:
            raise NotFound(f"no request {key.request_id} waits or runs", reason=UNKNOWN_REQUEST)
        if len(found) > 1:
            message = f"{len(found)} tenants have a request {key.request_id}: name one"
            raise InvalidArgument(message, field="tenant")
        return found[0]

    def _why_not(self, job: Job, to: WorkerSlots) -> str:
        """Why an operator cannot move a job to a worker; empty if that is possible."""
        giver = self._state.worker_of(job)
        if giver is None or job.state not in _ON_WORKER:
            return "it does not run yet"
        if giver is to:
            return f"{to.worker_id} has it already"
        if job.move is not None:
            return f"it is on its way to {job.move.to_id}"
        if to.state == scheduler_pb2.WORKER_STATE_DRAINING:
            return f"{to.worker_id} is draining"
        if job.model not in to.context_lengths:
            return f"{to.worker_id} has not the model {job.model}"
        if not fits(job, to):
            return f"it does not fit {to.worker_id}"
        if not has_takable_state(job):
            return "no other worker can begin with its state"
        if not can_take(to, giver, job.model):
            return f"{to.worker_id} cannot fetch KV state from {giver.worker_id}"
        if not self._has_room(job, to):
            return f"{to.worker_id} has no room for it"
        if not self._state.moves.has_turn(giver.worker_id, to.worker_id):
            return f"as many requests as may already move from {giver.worker_id} or to {to.worker_id}"
        return ""

    @staticmethod
    def has_way(job: Job, giver: WorkerSlots, to: WorkerSlots | None) -> bool:
        """True if a worker can go on with a job from its state."""
        return to is not None and has_takable_state(job) and can_take(to, giver, job.model)

    def leave(self, job: Job, to: WorkerSlots | None, why: Why, now: float) -> list[Action]:
        """Have a job go on elsewhere, with its state ahead of it if another worker can fetch that.

        Args:
            to: a worker that has room; None: there is none.
        """
        giver = self._state.worker_of(job)
        if job.move is not None:
            return []
        if giver is None or to is None or not self.has_way(job, giver, to):
            return self._state.requeue(job, RequeueReason.MOVED, now, must_drop=True)
        if not self._state.moves.has_turn(giver.worker_id, to.worker_id):
            return []
        return self.begin(job, to, why, now)

    # Splits

    def prompt_worker(
        self, job: Job, decode: WorkerSlots, but: Collection[Size]
    ) -> tuple[WorkerSlots | None, Decision | None]:
        """The prefill worker that computes the prompt of a job for another one, and what was decided.

        Args:
            decode: the worker that has room for it.
            but: no worker of these sizes.

        Returns:
            None, None where there is nothing to decide.
        """
        placement = self._state.placement
        if decode.is_prefill or not placement.has_prefill(job.model):
            return None, None
        if job.has_run or job.replay.is_due or job.is_suspect or job.max_tokens == 1:
            return None, Decision.UNSUITED
        if not has_takable_state(job):
            return None, Decision.UNSUITED
        prefill = placement.choose_prefill(job, but)
        if prefill is None or not can_take(decode, prefill, job.model):
            return None, Decision.NO_PREFILL
        side = self._side(job, prefill)
        there = self._side(job, decode)
        # What the prefill worker has cached is sent too; what is there already is not.
        decision = decide(side, there, transfer_s(there.tokens, decode, prefill))
        return (prefill if decision is Decision.SPLIT else None), decision

    def _side(self, job: Job, worker: WorkerSlots) -> Side:
        """The worker as one that could compute the prompt of a job."""
        ahead = delayed = 0
        for key, assignment in worker.assignments.items():
            other = self._state.jobs[key]
            if not assignment.is_running:
                continue
            if other.known_tokens > other.generated_tokens:
                delayed += 1
            else:
                ahead += max(0, other.to_prefill_on(worker.worker_id) - other.stay.seen_computed)
        rate = worker.status.prefill_tokens_per_s
        return Side(job.to_prefill_on(worker.worker_id), ahead, delayed, rate)

    def on_yield(self, job: Job, now: float) -> list[Action] | None:
        """A worker has computed the prompt of a split request. Returns None where it had better go on there:
        the other worker cannot take it."""
        move = job.move
        if move is None or not job.is_split:
            return None
        to = self._state.table.get(move.to_id, move.to_incarnation)
        if to is None or not to.admits(Start.NEW):
            self._state.end_move(job, "no_room")
            return None
        return self._follow(job, now)

    # Going on

    def on_taken(self, worker: WorkerSlots, told: scheduler_pb2.StateTaken, now: float) -> list[Action]:
        """A worker has what it fetched of a request, or will not have it."""
        job = self._state.jobs.get(RequestKey(told.tenant, told.request_id))
        move = None if job is None else job.move
        if job is None or move is None or move.is_following:
            return []
        is_its = (move.to_id, move.to_incarnation) == (worker.worker_id, worker.incarnation)
        if not is_its or told.epoch != move.epoch:
            return []
        move.take(told.tokens, told.error)
        if told.error:
            return self._give_up(job, move, "error", now)
        if move.is_split:  # its first token is about to come, on the other worker
            return []
        return self._follow(job, now)

    def _follow(self, job: Job, now: float) -> list[Action]:
        self._state.moves.follow(job)
        return self._state.requeue(job, RequeueReason.MOVED, now, must_drop=True)

    def _give_up(self, job: Job, move: Move, outcome: str, now: float) -> list[Action]:
        """Its state does not come: one that had to leave leaves without."""
        self._state.end_move(job, outcome)
        must_leave = move.why is Why.DRAIN or (move.why is Why.PREEMPTED and job.state is JobState.PARKED)
        if must_leave and not job.is_cancelled:
            return self._state.requeue(job, RequeueReason.MOVED, now, must_drop=True)
        return []

    def due(self, now: float) -> list[Action]:
        """Give up the moves whose state has not come in time."""
        out: list[Action] = []
        for job in self._state.moves.jobs:
            move = job.move
            if move is not None and not move.is_following and now >= move.until_s:
                self._state.handle(job)
                out += self._give_up(job, move, "late", now)
        return out

    def ended(self) -> list[Action]:
        """Tell of the moves that have ended since this was asked last; of one that was given up, its target
        fetches no more."""
        out: list[Action] = []
        for ended in self._state.moves.take_ended():
            out.append(ended)
            move = ended.move
            job = self._state.jobs.get(ended.key)
            # The same fetch serves one that has begun again.
            is_again = job is not None and job.move is not None and job.move.to_id == move.to_id
            is_alive = self._state.table.get(move.to_id, move.to_incarnation) is not None
            if move.outcome != DONE and is_alive and not is_again:
                out.append(self._state.drop(move.to_id, ended.key, move.epoch))
        return out

    def place(self, job: Job) -> WorkerSlots | None:
        """The worker that a queued job follows its state to. None where it has to be placed as any other."""
        worker = self._state.moves.arrive(job)
        if worker is not None and worker.has_slot_for(Start.NEW) and self._has_room(job, worker):
            return worker
        self._state.end_move(job, "gone" if worker is None else "no_room")
        return None

    @staticmethod
    def _has_room(job: Job, worker: WorkerSlots) -> bool:
        has_cells = cells_wanted_on(job, worker) <= worker.free_cells
        return worker.has_slot_for(Start.NEW) and fits(job, worker) and has_cells
