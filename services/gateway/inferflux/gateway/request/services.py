"""Everything that a generation works with, put together once for a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

from inferflux.common.bus import Bus
from inferflux.common.calls.audit.writer import AuditTrail
from inferflux.common.process.tasks import Background
from inferflux.gateway.answers.cache import AnswerCache
from inferflux.gateway.metrics import GatewayMetrics
from inferflux.gateway.policy.ledger import Ledger, Settles
from inferflux.gateway.policy.reservations import Reservations, Reserves
from inferflux.gateway.stream.canceller import Canceller
from inferflux.gateway.stream.reader import ReaderServices
from inferflux.gateway.stream.readers import ReaderReports
from inferflux.gateway.stream.relay import RelayLimits
from inferflux.gateway.stream.stream_guards import FetchesGuards, StreamGuards
from inferflux.gateway.stream.token_streams import TokenStreams

from .account import Accounts
from .queue import JobQueue
from .streams import Streams

_RELAY_LIMITS = RelayLimits()
# Longest wait for the scheduler to confirm a cancellation, or to say what it knows of a reader.
_CANCEL_LIMIT_S = 2.0


class Policy(Reserves, Settles, FetchesGuards, Protocol):
    """The policy service, as `inferflux.gateway.policy.admission.Admission` calls it."""


@dataclass(frozen=True, slots=True)
class Services:
    """What a generation works with.

    Attributes:
        answers: None where no answers are cached.
    """

    queue: JobQueue
    tokens: TokenStreams
    readers: ReaderServices
    accounts: Accounts
    guards: StreamGuards
    streams: Streams
    background: Background
    answers: AnswerCache | None

    @classmethod
    def over(
        cls,
        bus: Bus,
        policy: Policy,
        background: Background,
        metrics: GatewayMetrics,
        trail: AuditTrail,
        *,
        streams: Streams,
        relay_limits: RelayLimits | None = None,
        cancel_timeout_s: float = _CANCEL_LIMIT_S,
        answers: AnswerCache | None = None,
    ) -> Self:
        """The services of a gateway.

        Args:
            cancel_timeout_s: longest wait for the scheduler to say what it knows of a request.
        """
        reports = ReaderReports(bus, timeout_s=cancel_timeout_s)
        canceller = Canceller(bus, background, timeout_s=cancel_timeout_s)
        return cls(
            queue=JobQueue(bus),
            tokens=TokenStreams(bus, relay_limits or _RELAY_LIMITS, metrics.bad),
            readers=ReaderServices(reports, canceller, background),
            accounts=Accounts(Reservations(policy), Ledger(policy, background, trail), metrics, trail),
            guards=StreamGuards(policy),
            streams=streams,
            background=background,
            answers=answers,
        )

    def start(self, background: Background) -> None:
        """Report readers, renew what is reserved, and watch over the answer cache, for ever."""
        background.start(self.readers.reports.run())
        background.start(self.accounts.reservations.run())
        if self.answers is not None:
            background.start(self.answers.run())
