"""Workers of each role, and how many of them there should be (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inferflux.common.contract.known_workers import MAX_WORKERS
from inferflux.common.contract.requests.worker_roles import NAMES, Role
from inferflux.v1 import scheduler_pb2

UNIFIED = scheduler_pb2.WORKER_ROLE_UNIFIED
PREFILL = scheduler_pb2.WORKER_ROLE_PREFILL
DECODE = scheduler_pb2.WORKER_ROLE_DECODE


def role_of(status: scheduler_pb2.WorkerStatus) -> Role:
    """Role that a worker has; one that names none, or one of a later version, is unified."""
    return status.role if status.role in NAMES else UNIFIED


def name_of(role: Role) -> str:
    """unified, prefill or decode."""
    return NAMES.get(role, "unified")


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers of one role.

    Attributes:
        ready: how many of them are ready.
        expected: how many should be; 0: any number.
    """

    role: Role
    ready: int
    expected: int = 0

    @property
    def reason(self) -> str:
        """`decode pool not ready`."""
        return f"{name_of(self.role)} pool not ready"

    @property
    def not_ready(self) -> str:
        """Why it is not as it should be; empty if it is."""
        if self.ready >= self.expected:
            return ""
        return f"{self.reason}: {self.ready} of {self.expected} workers"


def ready_role(status: scheduler_pb2.WorkerStatus) -> Role | None:
    """Role of a worker that is ready; None of any other."""
    return role_of(status) if status.state == scheduler_pb2.WORKER_STATE_READY else None


def pools(roles: Iterable[Role | None], *, prefill: int = 0, decode: int = 0) -> tuple[Pool, Pool]:
    """The pools of prefill and of decode workers.

    Args:
        roles: by `ready_role`, of each worker that lives.
        prefill, decode: ready workers of that role that there should be; 0: any number.
    """
    ready = list(roles)
    return Pool(PREFILL, ready.count(PREFILL), prefill), Pool(DECODE, ready.count(DECODE), decode)


class PoolWatch:
    """Ready workers with a role, of all models: those that any leader knows.

    Args:
        prefill, decode: ready workers of that role that there should be; 0: any number.
        dead_s: from the last heartbeat of a worker until it counts no more.
    """

    def __init__(self, *, prefill: int, decode: int, dead_s: float) -> None:
        self._prefill, self._decode = prefill, decode
        self._dead_s = dead_s
        # By worker id: its incarnation, role, and when its last heartbeat came.
        self._ready: dict[str, tuple[str, Role, float]] = {}

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus, now: float) -> None:
        """Take in the heartbeat of a worker, at `now` in seconds of the caller's clock."""
        role = ready_role(status)
        if role is None or role == UNIFIED:
            self._ready.pop(status.worker_id, None)
        elif status.worker_id in self._ready or len(self._ready) < MAX_WORKERS:
            self._ready[status.worker_id] = status.incarnation, role, now

    def on_left(self, worker_id: str, incarnation: str) -> None:
        """A worker is gone, if it is still this one."""
        if worker_id in self._ready and self._ready[worker_id][0] == incarnation:
            del self._ready[worker_id]

    def small(self, now: float) -> list[Pool]:
        """The pools that are smaller than they should be."""
        self._ready = {id_: one for id_, one in self._ready.items() if now - one[2] < self._dead_s}
        roles = (role for _, role, _ in self._ready.values())
        return [p for p in pools(roles, prefill=self._prefill, decode=self._decode) if p.not_ready]
