"""Choice of the models that each host loads (pure).

A model that requests wait for, and that a host knows, is loaded: where there is room; else where models that
are not used make room, the one used longest ago first; else, once its requests have waited for a
while, in place of the model that has been loaded for longest. So each model has its turn, however many there
are. Of hosts that are equal in that, one in the zone of the request that has waited for longest is taken.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from inferflux.common.contract.errors import InferFluxError
from inferflux.common.contract.models import load_retries
from inferflux.common.contract.partitions import WHOLE, Partition
from inferflux.scheduler.core.types import actions, outcomes
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.jobs import Demand, Job
from inferflux.scheduler.core.workers.hosts import FAILED, LOADING, READY, REGISTERED, HostTable, HostView
from inferflux.v1 import host_pb2

from .queue import ModelQueue
from .state import SchedulerState

# A host that has refused a command about a model, or not answered, gets no other about it for this long.
_BLOCKED_S = 2.0
# Room that is made is kept for the model it is made for, for no longer than this.
_PLAN_S = 120.0
# How fast a model that was never loaded is expected to load.
_LOAD_BYTES_PER_S = 500e6
_LEAST_LOAD_S = 1.0
# A model that has become ready is served as soon as its worker's first heartbeat has come.
_FIRST_HEARTBEAT_S = 3.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A model that requests wait for and no worker serves where they may run."""

    model: str
    demand: Demand
    first: Job
    since_s: float


@dataclass(frozen=True, slots=True)
class _Plan:
    """Room is being made for a model."""

    host_id: str
    since_s: float


@dataclass(frozen=True, slots=True)
class _Failure:
    """A load that failed.

    Attributes:
        since_unix_ms: the host's time of it, which tells it from the one before.
        until_s: it is not tried again before.
    """

    count: int
    since_unix_ms: int
    until_s: float
    reason: str


class Residency:
    """Decides what hosts load and unload.

    Args:
        wait_s: how long requests wait for a model before a model in use makes room for it; and the least time
            that a model stays loaded.
        partition: of the models, which this scheduler has. It does not see who uses others.
    """

    def __init__(self, state: SchedulerState, *, wait_s: float, partition: Partition = WHOLE) -> None:
        self._partition = partition
        self.hosts = HostTable()
        self._state = state
        self._wait_s = wait_s
        self._plans: dict[str, _Plan] = {}
        self._used_s: dict[str, float] = {}
        self._failures: dict[tuple[str, str], _Failure] = {}

    # What is known

    def is_expected(self, model: str, demand: Demand) -> bool:
        """True if requests for a model that no worker serves need not be given up: a host can load it.

        One that has it loaded cannot: its worker is there, and takes nothing.
        """
        return any(host.models[model].state != READY for host in self.hosts.knowing(model, *demand))

    def expected_load_s(self, model: str, now: float) -> float:
        """Seconds until a model that no worker serves may be ready; 0 where it is served, or unknown."""
        if not len(self.hosts) or self._is_ready(model):
            return 0.0
        return min((_load_s(host, model, now) for host in self.hosts.knowing(model)), default=0.0)

    # What happens

    def on_host(self, status: host_pb2.HostStatus, now: float) -> None:
        """A host reports.

        Raises:
            InvalidArgument: it is new, and there are as many as are kept.
        """
        self.hosts.on_status(status, now)
        host = self.hosts.get(status.host_id)
        for model in () if host is None else host.models.values():
            if model.state == FAILED:
                self._note_failure(status.host_id, model, now)
            elif model.state == READY:
                self._failures.pop((status.host_id, model.card.name), None)

    def on_answer(
        self, host_id: str, name: str, answer: host_pb2.HostedModel | InferFluxError, now: float
    ) -> None:
        """A host has answered a command about a model, or has not: then as the error says."""
        host = self.hosts.get(host_id)
        if host is None:
            return
        host.loads.discard(name)
        host.unloads.discard(name)
        if isinstance(answer, host_pb2.HostedModel):
            host.note(answer, now)
        else:
            host.blocked_until_s[name] = now + _BLOCKED_S

    def decide(self, now: float) -> list[Action]:
        """Return the commands to load and unload models now, and the ends of requests that no host can
        serve."""
        if not len(self.hosts):
            return []
        out: list[Action] = []
        self.hosts.forget_silent(now, self._state.limits.worker_dead_s)
        self._note_use(now)
        self._forget_failures()
        wanted = self._wanted()
        self._plans = {
            name: plan for name, plan in self._plans.items() if any(w.model == name for w in wanted)
        }
        for each in wanted:
            out += self._serve(each, now)
        return out + self._unload_idle(now)

    # Models in use, and models that are wanted

    def _note_use(self, now: float) -> None:
        for host in self.hosts:
            for name in host.models:
                if self._is_busy(host, name) or self._has_waiting(name):
                    self._used_s[name] = now
        known = {name for host in self.hosts for name in host.models}
        for name in self._used_s.keys() - known:
            del self._used_s[name]

    def _wanted(self) -> list[_Wanted]:
        """Most urgent first."""
        found: list[_Wanted] = []
        is_served = self._state.placement.is_served
        for model, queue in self._state.queue.models.items():
            for demand in queue.demands:
                first = None if is_served(model, demand) else _first_of(queue, demand)
                if first is not None and self.hosts.knowing(model, *demand):
                    found.append(_Wanted(model, demand, first, first.wait.queued_s))
        key = self._state.queue.urgency_key
        return sorted(found, key=lambda w: (key(w.first), w.first.arrival))

    def _serve(self, wanted: _Wanted, now: float) -> list[Action]:
        """Return the actions that bring a wanted model nearer to being served."""
        hosts = self.hosts.knowing(wanted.model, *wanted.demand)
        if any(_is_coming(host, wanted.model, now) for host in hosts):
            return []
        if why := self._why_hopeless(wanted, hosts, now):
            return self._end(wanted, why)
        able = [host for host in hosts if self._may_load(host, wanted.model, now)]
        with_room = [host for host in able if self._fits(host, wanted.model)]
        if with_room:
            near = [host for host in with_room if not wanted.first.is_far_from(host.status.zone)]
            host = max(near or with_room, key=lambda h: h.free_bytes)
            return [self._load(host, wanted.model)]
        if self._is_room_coming(wanted.model, able, now):
            return []
        self._plans.pop(wanted.model, None)
        return self._make_room(wanted, able, now)

    def _load(self, host: HostView, model: str) -> Action:
        self._plans.pop(model, None)
        host.loads.add(model)
        command = self._new_command()
        command.load.name = model
        return actions.CommandHost(host.host_id, model, command, "load", "wanted")

    def _unload(self, host: HostView, model: str, why: str) -> Action:
        host.unloads.add(model)
        command = self._new_command()
        command.unload.name = model
        return actions.CommandHost(host.host_id, model, command, "unload", why)

    def _new_command(self) -> host_pb2.HostCommand:
        return host_pb2.HostCommand(term=self._state.term, partition=self._partition.name)

    # Room

    def _fits(self, host: HostView, model: str) -> bool:
        free, places = self._left(host, model)
        return places > 0 and host.models[model].needs_bytes <= free

    def _left(self, host: HostView, model: str) -> tuple[int, int]:
        """(memory, places) that are left for a model: room that is made for others is theirs, where it was
        planned before this model's. So the oldest plan has all that is free, and none holds up another."""
        own = self._plans.get(model)
        if own is not None and own.host_id != host.host_id:
            own = None
        others = [
            host.models[name]
            for name, plan in self._plans.items()
            if plan.host_id == host.host_id
            and name != model
            and name in host.models
            and (own is None or (plan.since_s, name) < (own.since_s, model))
        ]
        return host.free_bytes - sum(m.needs_bytes for m in others), host.free_places - len(others)

    def _is_room_coming(self, model: str, able: Collection[HostView], now: float) -> bool:
        """True if a host is making room for a model. Where nothing leaves any more, others took the room, or
        the host did not do as it was told."""
        plan = self._plans.get(model)
        host = None if plan is None else self.hosts.get(plan.host_id)
        if plan is None or host is None or host not in able:
            return False
        age_s = now - plan.since_s
        return age_s < _BLOCKED_S or (age_s < _PLAN_S and any(host.leaving(now)))

    def _make_room(self, wanted: _Wanted, hosts: Iterable[HostView], now: float) -> list[Action]:
        may_disturb = now - wanted.since_s >= self._wait_s
        choices: list[tuple[int, bool, int, str, HostView, list[str]]] = []
        for host in hosts:
            leave = self._who_leaves(host, wanted.model, now, may_disturb=may_disturb)
            if leave is not None:
                disturbed = sum(self._is_busy(host, name) for name in leave)
                is_far = wanted.first.is_far_from(host.status.zone)
                choices.append((disturbed, is_far, len(leave), host.host_id, host, leave))
        if not choices:
            return []
        host, leave = min(choices, key=lambda choice: choice[:4])[4:]
        self._plans[wanted.model] = _Plan(host.host_id, now)
        return [self._unload(host, name, "room") for name in leave]

    def _who_leaves(self, host: HostView, model: str, now: float, *, may_disturb: bool) -> list[str] | None:
        """The models that make room for another one; None if there is no room to be made.

        Those that are leaving already count as room.
        """
        free, places = self._left(host, model)
        for going in host.leaving(now):
            free, places = free + going.needs_bytes, places + 1
        needs = host.models[model].needs_bytes
        leave: list[str] = []
        for name in self._candidates(host, now, may_disturb=may_disturb):
            if places > 0 and needs <= free:
                break
            leave.append(name)
            free, places = free + host.models[name].needs_bytes, places + 1
        return leave if places > 0 and needs <= free else None

    def _candidates(self, host: HostView, now: float, *, may_disturb: bool) -> list[str]:
        """Models that may be unloaded: unused ones, the one used longest ago first, then, if they
        may be disturbed, those that have been loaded for longest."""
        idle: list[str] = []
        used: list[str] = []
        for name, since_s in host.ready_since_s.items():
            if not self._may_unload(host, name):
                continue
            if not self._is_busy(host, name) and not self._has_waiting(name):
                idle.append(name)
            elif may_disturb and now - since_s >= self._wait_s:
                used.append(name)
        idle.sort(key=lambda name: self._used_s.get(name, 0.0))
        used.sort(key=lambda name: host.ready_since_s[name])
        return idle + used

    def _unload_idle(self, now: float) -> list[Action]:
        """Unload what was not used for as long as its host allows."""
        out: list[Action] = []
        for host in self.hosts:
            idle_s = host.status.idle_s
            for name, since_s in host.ready_since_s.items() if idle_s else ():
                last_s = max(self._used_s.get(name, 0.0), since_s)
                is_blocked = now < host.blocked_until_s.get(name, 0.0)
                if self._may_unload(host, name) and not is_blocked and now - last_s >= idle_s:
                    out.append(self._unload(host, name, "idle"))
        return out

    def _may_unload(self, host: HostView, model: str) -> bool:
        return self._partition.has(model) and not host.models[model].is_pinned and model not in host.unloads

    # Failures

    def _note_failure(self, host_id: str, model: host_pb2.HostedModel, now: float) -> None:
        key = host_id, model.card.name
        before = self._failures.get(key)
        if before is not None and before.since_unix_ms == model.since_unix_ms:
            return
        count = before.count + 1 if before is not None else 1
        until_s = now + load_retries.pause_s(count)
        self._failures[key] = _Failure(count, model.since_unix_ms, until_s, model.reason)

    def _forget_failures(self) -> None:
        """Forget those of models that no host knows any more."""
        for host_id, model in list(self._failures):
            host = self.hosts.get(host_id)
            if host is None or model not in host.models:
                del self._failures[host_id, model]

    def _may_load(self, host: HostView, model: str, now: float) -> bool:
        failure = self._failures.get((host.host_id, model))
        is_paused = failure is not None and now < failure.until_s
        is_there = host.models[model].state in (REGISTERED, FAILED)
        return is_there and not is_paused and now >= host.blocked_until_s.get(model, 0.0)

    def _why_hopeless(self, wanted: _Wanted, hosts: Collection[HostView], now: float) -> str:
        """Reason why none of the hosts that know a model can load it; "" if one may."""
        why = ""
        for host in hosts:
            needs, room = host.models[wanted.model].needs_bytes, host.status.memory_bytes
            pinned = [model for model in host.staying if model.card.name != wanted.model]
            stays = sum(model.needs_bytes for model in pinned)
            failure = self._failures.get((host.host_id, wanted.model))
            if failure is not None and now < failure.until_s:
                why = failure.reason
            elif needs > room - stays and not host.models[wanted.model].is_pinned:
                beside = " beside the models that stay loaded" if pinned else ""
                why = f"it needs {needs} bytes of memory, host {host.host_id} has {room} for models{beside}"
            elif len(pinned) >= host.status.models_max:
                why = f"host {host.host_id} loads at most {host.status.models_max} models, and those stay"
            else:
                return ""
        return why

    def _end(self, wanted: _Wanted, why: str) -> list[Action]:
        out: list[Action] = []
        for job in [job for job in self._state.queue.models[wanted.model] if job.is_queued]:
            if job.demand == wanted.demand:
                out += self._state.finish(job, outcomes.not_loaded(job, why))
        return out

    # What is on a host

    def _is_busy(self, host: HostView, model: str) -> bool:
        """True if requests are resident where a host has loaded a model."""
        worker = self._state.table.get(host.models[model].worker_id)
        return worker is not None and bool(worker.assignments)

    def _has_waiting(self, model: str) -> bool:
        return bool(self._state.queue.models.get(model))

    def _is_ready(self, model: str) -> bool:
        return any(host.models[model].state == READY for host in self.hosts.knowing(model))


def _first_of(queue: ModelQueue, demand: Demand) -> Job | None:
    """The request that has waited for longest of those that may run in the same places."""
    waiting = (job for job in queue if job.is_queued and job.demand == demand)
    return min(waiting, key=lambda job: job.wait.queued_s, default=None)


def _is_coming(host: HostView, model: str, now: float) -> bool:
    is_new = now - host.ready_since_s.get(model, -math.inf) < _FIRST_HEARTBEAT_S
    return model in host.loads or host.models[model].state == LOADING or is_new


def _load_s(host: HostView, model: str, now: float) -> float:
    known = host.models[model]
    load_s = known.load_s or max(known.card.size_bytes / _LOAD_BYTES_PER_S, _LEAST_LOAD_S)
    if known.state == LOADING:
        return max(load_s - (now - host.loading_since_s.get(model, now)), 0.0)
    return load_s
