"""Token streams of requests, as NATS has them: live, stored for a while, and sent again by their workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial

from inferflux.common.bus import Bus, TokenSubscription
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.process.bad_messages import BadMessages
from inferflux.v1 import tokens_pb2

from .relay import Relay, RelayLimits, TokenSource, replayed


class TokenStreams:
    """All of them; a subject names one."""

    def __init__(self, bus: Bus, limits: RelayLimits, bad: BadMessages) -> None:
        self._bus = bus
        self._limits = limits
        self._bad = bad

    async def open(self, subject: str) -> TokenSubscription:
        """Subscribe to what comes from now on."""
        return await self._bus.open_stream(subject)

    async def stored(self, subject: str) -> list[bytes]:
        """Messages that came lately.

        Raises:
            Unavailable: NATS does not answer.
        """
        return await replayed(self._bus, subject)

    async def publish(self, subject: str, data: bytes, /) -> None:
        """Publish a chunk.

        Raises:
            Unavailable: NATS does not take it.
        """
        await self._bus.publish(subject, data)

    def relay(
        self,
        source: TokenSource,
        tenant: str,
        request_id: str,
        *,
        offset: int,
        on_accept: Callable[[tokens_pb2.TokenChunk], Iterable[tokens_pb2.TokenChunk]],
    ) -> Relay:
        """The chunks of a request in order, from an offset on; see `Relay`."""
        subject = subjects.tokens(tenant, request_id)
        return Relay(
            source,
            self._bus,
            subject,
            offset=offset,
            limits=self._limits,
            on_accept=on_accept,
            on_bad=partial(self._note_bad, subject),
            want=partial(self._want_again, tenant, request_id),
        )

    def _note_bad(self, subject: str, error: InvalidArgument) -> None:
        self._bad.note("chunk", error, subject=subject)

    async def _want_again(self, tenant: str, request_id: str, offset: int) -> None:
        """Have whichever worker keeps a request's chunks publish those from this token on again."""
        notice = tokens_pb2.TokensWanted(tenant=tenant, request_id=request_id, offset=offset)
        with contextlib.suppress(Unavailable):  # the relay asks again
            await self._bus.publish(subjects.wanted(tenant, request_id), notice.SerializeToString())
