"""Workers of each role, and how many of them there should be (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from inferflux.v1 import scheduler_pb2

UNIFIED = scheduler_pb2.WORKER_ROLE_UNIFIED
PREFILL = scheduler_pb2.WORKER_ROLE_PREFILL
DECODE = scheduler_pb2.WORKER_ROLE_DECODE

Role: TypeAlias = scheduler_pb2.WorkerRole.ValueType

_NAMES: Mapping[Role, str] = {UNIFIED: "unified", PREFILL: "prefill", DECODE: "decode"}


def role_of(status: scheduler_pb2.WorkerStatus) -> Role:
    """Role that a worker has; one that names none, or one of a later version, is unified."""
    return status.role if status.role in _NAMES else UNIFIED


def name_of(role: Role) -> str:
    """unified, prefill or decode."""
    return _NAMES.get(role, "unified")


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
    def not_ready(self) -> str:
        """Why it is not as it should be; empty if it is."""
        if self.ready >= self.expected:
            return ""
        return f"{name_of(self.role)} pool not ready: {self.ready} of {self.expected} workers"


def pools(
    statuses: Iterable[scheduler_pb2.WorkerStatus], *, prefill: int = 0, decode: int = 0
) -> tuple[Pool, Pool]:
    """The pools of prefill and of decode workers.

    Args:
        statuses: the latest of each worker that lives.
        prefill, decode: ready workers of that role that there should be; 0: any number.
    """
    ready = [role_of(status) for status in statuses if status.state == scheduler_pb2.WORKER_STATE_READY]
    return Pool(PREFILL, ready.count(PREFILL), prefill), Pool(DECODE, ready.count(DECODE), decode)


def why_not_ready(
    statuses: Iterable[scheduler_pb2.WorkerStatus], *, prefill: int = 0, decode: int = 0
) -> str:
    """Why a pool is smaller than it should be, by name; empty if none is. Takes what `pools` takes."""
    return "; ".join(
        pool.not_ready for pool in pools(statuses, prefill=prefill, decode=decode) if pool.not_ready
    )
