"""Choice of the next request: the order of one model's requests, behind one small interface (pure).

A policy decides the order of the queue, and with `urgency_key` and `precedes` everything that follows from
urgency on the workers: which request is preempted, whose prompt is computed first, and whose KV cells are
evicted first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from inferflux.scheduler.core.types.jobs import Job


class QueuePolicy(Protocol):
    """Holds the waiting jobs of one model in the order in which they are to be served.

    A policy owns its order, so one that looks at more than a fixed key (shares per tenant, say) can
    keep what it needs in `push`, `discard` and `charge`.
    """

    def urgency_key(self, job: Job) -> float:
        """The urgency of a request that is given a place now; lower is more urgent. Workers go by it."""
        ...

    def precedes(self, job: Job, running: Job) -> bool:
        """True if a waiting request is so much more urgent that it may take the place of a running one."""
        ...

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Job]:
        """Every waiting job, not necessarily in order. Nothing may be pushed or taken out meanwhile."""
        ...

    def push(self, job: Job) -> None: ...
    def first(self) -> Job | None: ...
    def first_of(self, jobs: Sequence[Job]) -> Job:
        """Return the one of these jobs to serve first: the firsts of several queues of this policy."""
        ...

    def discard(self, job: Job) -> None:
        """Take a job out that was pushed: it is served, or does not wait any more. Raises KeyError."""
        ...

    def put_back(self, job: Job) -> None:
        """Take a job in again that was just taken out and not served, as if it had never been out."""
        self.push(job)

    def position(self, job: Job) -> int:
        """Number of the jobs waiting here that would be served before it if no more came, whether it waits
        here or not; an estimate where that depends on how much they get."""
        ...

    def charge(self, tenant: str, input_tokens: int, output_tokens: int) -> None:  # noqa: ARG002
        """A tenant is served: prompt tokens as a job departs, and before the next one is looked for;
        generated ones as they become known."""
        return

    def on_running(self, tenant: str) -> None:  # noqa: ARG002
        """A tenant has more or fewer requests running than before."""
        return
