"""The core behind a guard: once it has raised, its state cannot be trusted, and it is not called any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from inferflux.common.bus import Job
from inferflux.common.contract.errors import InferFluxError, Unavailable
from inferflux.common.process.metrics import UNEXPECTED_ERRORS
from inferflux.scheduler.core.defects import PlanningHealth
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types.actions import Action
from inferflux.v1 import scheduler_pb2

_T = TypeVar("_T")


class Culprit(NamedTuple):
    """A request over which the core raised, in which epoch, and its place in the work queue."""

    request: scheduler_pb2.InferenceRequest
    epoch: int
    job: Job


class GuardedCore:
    """Every message and every tick enters the core here, with the time.

    Args:
        do: performs what the core decides.
        clock: seconds since the Unix epoch.
        health: told when the core raises.

    Attributes:
        failed: set once the core has raised.
        culprits: requests over which it did, and what.
        defects: what it was doing, and what it raised.
    """

    def __init__(
        self,
        core: SchedulerCore,
        do: Callable[[list[Action]], None],
        clock: Callable[[], float],
        health: PlanningHealth,
    ) -> None:
        self._core = core
        self._do = do
        self._clock = clock
        self._health = health
        self.failed = asyncio.Event()
        self.culprits: list[tuple[Culprit, BaseException]] = []
        self.defects: list[tuple[str, BaseException]] = []

    def decide(
        self,
        what: str,
        decide: Callable[[SchedulerCore, float], list[Action]],
        about: Culprit | None = None,
    ) -> None:
        """Have the core decide, and perform that.

        Args:
            about: the request, when it is about one.
        """
        self.attempt(what, lambda now: self._do(decide(self._core, now)), about)

    def ask(self, what: str, ask: Callable[[SchedulerCore, float], _T]) -> _T:
        """Have the core answer.

        Raises:
            Unavailable: it has raised, now or before.
        """
        answers: list[_T] = []
        self.attempt(what, lambda now: answers.append(ask(self._core, now)))
        if not answers:
            raise Unavailable("the core raised", reason="SCHEDULER_FAILED")
        return answers[0]

    def attempt(self, what: str, work: Callable[[float], None], about: Culprit | None = None) -> None:
        """Do work on the core. An `InferFluxError` passes; any other exception is a defect."""
        if self.failed.is_set():
            return
        self._core.handle_nothing()
        try:
            work(self._clock())
        except InferFluxError:
            raise
        except Exception as error:  # noqa: BLE001 - logged when the request to blame has ended
            self.on_defect(what, error, about)

    def on_defect(self, what: str, error: BaseException, about: Culprit | None = None) -> None:
        """Note which request is to blame; the leader begins anew."""
        handled = self._core.handled
        if about is None and handled is not None and isinstance(handled.handle, Job):
            about = Culprit(handled.request, handled.epoch, handled.handle)
        UNEXPECTED_ERRORS.labels(where="scheduler").inc()
        if about is not None:
            self.culprits.append((about, error))
        self.defects.append((what, error))
        self._health.failed(f"{what}: {type(error).__name__}", self._clock())
        self.failed.set()
