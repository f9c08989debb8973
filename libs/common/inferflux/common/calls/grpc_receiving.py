"""Messages that are arriving: a bounded number at a time, so that what they hold stays bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, suppress

from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, ResourceExhausted

from .fair_places import FairPlaces


class Receiving:
    """Places for messages that are being received, shared among their owners.

    The body of an honest call follows its headers at once. A call of an owner with few places gets the oldest
    place of the owner with most, once that was held for `hold_s`. Between equals, a call that has held its
    place for `grace_s` loses it as soon as another call needs it. So the slow senders of one owner cannot
    keep others out.

    Args:
        limit: messages at a time.
        hold_s: how long a call keeps its place whatever comes, in seconds: long enough to read a body that is
            there already.
        grace_s: how long a call keeps its place against its owner's other calls, in seconds.
        time_limit_s: how long a message may take to arrive, in seconds.
    """

    def __init__(self, limit: int, *, grace_s: float, time_limit_s: float, hold_s: float = 0.0) -> None:
        self._limit = limit
        self._time_limit_s = time_limit_s
        self._places = FairPlaces[_Place](grace_s=grace_s, hold_s=hold_s)
        # Owner -> its calls that wait for a place, the oldest first.
        self._waiters: dict[Hashable, deque[asyncio.Future[None]]] = {}
        # When the calls that wait are looked at next, on the loop's clock.
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = 0.0

    def __len__(self) -> int:
        return len(self._places)

    @asynccontextmanager
    async def place(self, owner: Hashable = None) -> AsyncIterator[None]:
        """Hold a place while a message arrives.

        Raises:
            ResourceExhausted: another call needed the place.
            DeadlineExceeded: the message took longer than the limit.
        """
        while len(self._places) >= self._limit:
            await self._make_room(owner)
        place = _Place(owner, self._time_limit_s)
        try:
            async with place.timeout:
                self._places.take(owner, place, _now())
                self._set_timer()
                yield
        except TimeoutError:
            if not place.timeout.expired():
                raise
            raise self._refusal(was_displaced=place.is_displaced) from None
        finally:
            if self._places.give_back(owner, place):
                self._wake_next()

    def shed(self) -> bool:
        """Refuse a call that waits for a place: the oldest of the owner with most.

        Returns:
            Whether one waited.
        """
        while self._waiters:
            owner = max(self._waiters, key=lambda owner: len(self._waiters[owner]))
            if not (waiter := self._next_waiter(owner)).done():
                waiter.set_exception(self._refusal(was_displaced=True))
                return True
        return False

    async def _make_room(self, owner: Hashable) -> None:
        """Return when a place may be free: a holder was displaced, or one was given back."""
        if self._displace_for(owner):
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(owner, deque()).append(waiter)
        self._set_timer()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake_next()
            raise
        finally:
            self._forget(owner, waiter)

    def _displace_for(self, owner: Hashable) -> bool:
        """End the call that gives way to a call of this owner, if it does by now."""
        victim = self._places.victim(owner)
        if victim.at > _now():
            return False
        self._places.give_back(victim.holder.owner, victim.holder)
        victim.holder.displace()
        return True

    def _set_timer(self) -> None:
        """Look again when a place falls to the next call that waits. One timer serves all that wait."""
        if not self._waiters or len(self._places) < self._limit:
            return
        at = self._places.victim(self._next_owner()).at
        if self._timer is not None:
            if self._look_at <= at:
                return
            self._timer.cancel()
        self._timer, self._look_at = asyncio.get_running_loop().call_at(at, self._look), at

    def _look(self) -> None:
        self._timer = None
        if self._waiters and len(self._places) >= self._limit and self._displace_for(self._next_owner()):
            self._wake_next()
        self._set_timer()

    def _next_owner(self) -> Hashable:
        """Owner of the call that gets the next place: the owner with the fewest places."""
        return min(self._waiters, key=self._places.count)

    def _forget(self, owner: Hashable, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters.get(owner, deque())
        with suppress(ValueError):
            waiters.remove(waiter)
        if not waiters:
            self._waiters.pop(owner, None)

    def _wake_next(self) -> None:
        """Wake the call that waits longest of the owner with fewest places."""
        while self._waiters:
            if not (waiter := self._next_waiter(self._next_owner())).done():
                waiter.set_result(None)
                return

    def _next_waiter(self, owner: Hashable) -> asyncio.Future[None]:
        """Take the owner's oldest from those that wait."""
        waiters = self._waiters[owner]
        waiter = waiters.popleft()
        if not waiters:
            del self._waiters[owner]
        return waiter

    def _refusal(self, *, was_displaced: bool) -> InferFluxError:
        if was_displaced:
            message = "the request's body came too slowly while other calls waited"
            return ResourceExhausted(message, reason="BODY_TOO_SLOW")
        message = f"the request's body did not arrive within {self._time_limit_s:g} s"
        return DeadlineExceeded(message, reason="BODY_TOO_SLOW")


class _Place:
    """One call's place; compared by identity."""

    def __init__(self, owner: Hashable, time_limit_s: float) -> None:
        self.owner = owner
        self.timeout = asyncio.timeout(time_limit_s)
        self.is_displaced = False

    def displace(self) -> None:
        """End the call."""
        self.is_displaced = True
        self.timeout.reschedule(_now())


def _now() -> float:
    return asyncio.get_running_loop().time()
