"""State of a worker: its name, the scheduler that it follows, and whether it takes requests (pure)."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Protocol, Self

from inferflux.common.contract import terms
from inferflux.common.contract.requests.worker_pools import DEFAULT
from inferflux.common.contract.requests.worker_roles import BY_NAME
from inferflux.common.process import logs
from inferflux.v1 import scheduler_pb2

log = logs.get("worker.state")


class Place(Protocol):
    """Settings of where a worker stands in the fleet."""

    @property
    def role(self) -> str: ...

    @property
    def pool(self) -> str: ...

    @property
    def zone(self) -> str: ...


@dataclass(slots=True)
class WorkerState:
    """The worker's own state, whatever its models do.

    Attributes:
        incarnation: new at every start of the process.
        pool: which workers it belongs to.
        zone: where it is; empty: not known.
        role: what it is meant to compute.
        term: of the latest lease that this worker has seen.
        is_draining: it takes no new requests.
        is_leaving: the process is about to end, so draining cannot be undone.
        leaves_at_s: when what still runs goes to others, by the monotonic clock; None: it is not leaving.
    """

    worker_id: str
    incarnation: str
    started_unix_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    term: int = 0
    is_draining: bool = False
    is_leaving: bool = False
    leaves_at_s: float | None = None
    pool: str = DEFAULT
    zone: str = ""
    role: scheduler_pb2.WorkerRole.ValueType = scheduler_pb2.WORKER_ROLE_UNIFIED

    @classmethod
    def begin(cls, worker_id: str, settings: Place) -> Self:
        """State of a worker that starts now."""
        role = BY_NAME[settings.role]
        return cls(worker_id, uuid.uuid4().hex, pool=settings.pool, zone=settings.zone, role=role)

    def accepts(self, term: int, now_unix_ms: int) -> bool:
        """True if a message under the lease of `term` counts. If so, older terms are refused from now on.

        A term far beyond the present never counts.
        """
        latest = terms.latest(now_unix_ms)
        if term > latest:
            log.error("a term is beyond this machine's clock", term=term, latest=latest)
            return False
        if term < self.term:
            return False
        self.term = term
        return True

    def leave(self, at_s: float | None = None) -> None:
        """Take no new requests, for good.

        Args:
            at_s: when what still runs goes to others.
        """
        self.is_draining = self.is_leaving = True
        self.leaves_at_s = at_s

    def leaves_in_ms(self, now_s: float) -> int | None:
        """Milliseconds until what still runs goes to others; None: it is not leaving."""
        return None if self.leaves_at_s is None else max(0, round((self.leaves_at_s - now_s) * 1000))

    def undrain(self) -> bool:
        """Take requests again; False if nothing changes, as when the worker is about to leave."""
        if self.is_leaving or not self.is_draining:
            return False
        self.is_draining = False
        return True

    def with_model(self, *, is_ready: bool) -> scheduler_pb2.WorkerState.ValueType:
        """State that the heartbeat says, given whether the model is ready."""
        if self.is_draining:
            return scheduler_pb2.WORKER_STATE_DRAINING
        return scheduler_pb2.WORKER_STATE_READY if is_ready else scheduler_pb2.WORKER_STATE_LOADING
