"""Backends in their order: all must permit, and the first refusal decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from inferflux.common.calls import grpc_metadata
from inferflux.common.contract.errors import Aborted, PermissionDenied, Unavailable
from inferflux.common.process import logs
from inferflux.common.text.guardrails.refusals import TEXT_NEEDED
from inferflux.policy.metrics import DecisionMetrics
from inferflux.v1 import policy_pb2

from .cache import DecisionCache
from .facts import (
    PERMITTED,
    Backend,
    BackendFailed,
    Decision,
    Facts,
    facts_of_reservation,
)

DENIED = "DECISION_DENIED"
UNAVAILABLE = "DECISION_UNAVAILABLE"
_MAX_REASON_LENGTH = 200
# Between two log lines about failures of one backend.
_LOG_EVERY_S = 10.0

log = logs.get()


class Asked:
    """A backend within bounds: its time, what is remembered of it, and what its failure means.

    Args:
        timeout_s: for one decision.
        cache_s: how long a decision is remembered.
        is_fail_open: a call passes where the backend has not decided.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        backend: Backend,
        metrics: DecisionMetrics,
        *,
        timeout_s: float,
        cache_s: float,
        is_fail_open: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = backend.name
        self._backend = backend
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._cache = DecisionCache(cache_s)
        self._is_fail_open = is_fail_open
        self._clock = clock
        self._epoch = 0
        self._failures_unsaid = 0
        self._said_at_s = -_LOG_EVERY_S

    def forget(self) -> None:
        """Forget decisions that were made before."""
        self._epoch += 1
        self._cache.clear()

    async def decide(self, facts: Facts) -> Decision:
        """Raises:
        Unavailable: there is no decision, and the backend is not one that may be left out.
        """
        key, asked_at_s, epoch = facts.cache_key(), self._clock(), self._epoch
        if (known := self._cache.get(key, asked_at_s)) is not None:
            self._metrics.count(self.name, known.is_permitted, is_cached=True)
            return known
        try:
            async with asyncio.timeout(self._timeout_s):
                decision = await self._backend.decide(facts)
        except TimeoutError:
            return self._failed(f"no decision within {self._timeout_s:g} s")
        except BackendFailed as error:
            return self._failed(str(error))
        if epoch == self._epoch:
            self._cache.put(key, decision, asked_at_s)
        self._metrics.count(self.name, decision.is_permitted, is_cached=False)
        return decision

    def _failed(self, why: str) -> Decision:
        self._metrics.failed(self.name, is_permitted=self._is_fail_open)
        self._say(why)
        if self._is_fail_open:
            return PERMITTED
        raise Unavailable(f"the decision backend {self.name} has not decided", reason=UNAVAILABLE)

    def _say(self, why: str) -> None:
        self._failures_unsaid += 1
        now_s = self._clock()
        if now_s - self._said_at_s < _LOG_EVERY_S:
            return
        message = (
            "a decision backend failed, and calls are PERMITTED without it"
            if self._is_fail_open
            else "a decision backend failed: calls are refused"
        )
        log.warning(message, backend=self.name, why=why, failures=self._failures_unsaid)
        self._failures_unsaid, self._said_at_s = 0, now_s


class Decisions:
    """The backends that are asked about calls, beside policy's own decision.

    Args:
        before: asked before policy's own decision, in order.
        after: asked after it.
        wants_text: the backends are to see the texts of prompts.
    """

    def __init__(self, before: Sequence[Asked], after: Sequence[Asked], *, wants_text: bool = False) -> None:
        self._before = before
        self._after = after
        self.wants_text = wants_text

    async def admit(self, facts: Facts, authorize: Callable[[], object]) -> None:
        """Let a call pass.

        Args:
            authorize: policy's own decision: raises where it refuses.

        Raises:
            PermissionDenied: a backend refuses; `x-inferflux-decision` says which, and why.
            Unavailable: a backend has not decided.
        """
        await _ask(self._before, facts)
        authorize()
        await _ask(self._after, facts)

    async def reserve(self, request: policy_pb2.ReserveRequest) -> None:
        """Let a request be queued.

        Raises:
            PermissionDenied, Unavailable: as `admit`.
            Aborted: the text is needed, and the request does not have it.
            InvalidArgument: what it was admitted with is wrong.
        """
        if not request.HasField("facts"):
            message = "this was admitted by a policy process without decision backends: send it again"
            raise Unavailable(message, reason=UNAVAILABLE)
        if self.wants_text and not request.HasField("text"):
            raise Aborted("decision backends need the text of the prompt", reason=TEXT_NEEDED)
        facts = facts_of_reservation(request)
        if self.wants_text:
            facts = replace(facts, text=request.text)
        await _ask((*self._before, *self._after), facts)


async def _ask(backends: Sequence[Asked], facts: Facts) -> None:
    for backend in backends:
        decision = await backend.decide(facts)
        if not decision.is_permitted:
            raise _denied(backend.name, decision.reason)


def _denied(backend: str, reason: str) -> PermissionDenied:
    """The error of a refusal. A reason is text out of rules: it becomes one line of bounded length."""
    plain = "".join(c if c.isprintable() else " " for c in reason[:_MAX_REASON_LENGTH]).strip()
    message = f"{backend}: {plain or 'refused'}"
    error = PermissionDenied(message, reason=DENIED)
    error.headers = {grpc_metadata.DECISION: message.encode("ascii", "backslashreplace").decode()}
    return error
