"""Reservations with policy for the requests of this gateway, renewed while they run.

A gateway that dies renews nothing any more, so policy gives back what it had reserved. Where a client resumes
a request at another gateway before that, the other one goes on renewing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from inferflux.common.contract.errors import InferFluxError
from inferflux.common.process import logs
from inferflux.common.process.tasks import is_set_within
from inferflux.v1 import policy_pb2

log = logs.get()

# Of one call; policy takes no more.
_RENEWED_AT_ONCE = 512
# How often a reservation is renewed within its lease.
_RENEWALS_PER_LEASE = 3
# Until policy has said how long a lease is.
_ASSUMED_LEASE_S = 3.0

Name = tuple[str, str, str]


class Reserves(Protocol):
    """Policy, as reservations are made with it; `inferflux.gateway.policy.admission.Admission` is it."""

    async def reserve(self, request: policy_pb2.ReserveRequest) -> policy_pb2.ReserveResponse: ...

    async def renew(self, requests: Sequence[policy_pb2.ReservedRequest]) -> policy_pb2.RenewResponse: ...


class Reservations:
    """Reserves, and holds what was reserved until it is dropped. `run` renews it."""

    def __init__(self, policy: Reserves) -> None:
        self._policy = policy
        # How many hold each: the call that reserved, and those that resumed its stream here.
        self._held: Counter[Name] = Counter()
        self._lease_s = _ASSUMED_LEASE_S
        self._has_some = asyncio.Event()
        # Taken over, and not renewed since.
        self._taken_over: dict[Name, None] = {}
        self._has_taken_over = asyncio.Event()

    async def reserve(self, request: policy_pb2.ReserveRequest) -> policy_pb2.ReserveResponse:
        """Reserve what a request may use.

        Raises:
            ResourceExhausted: it would be over a limit.
            InferFluxError: policy says no, or does not answer.
        """
        answer = await self._policy.reserve(request)
        if answer.lease_ms:
            self._lease_s = answer.lease_ms / 1000
            self._hold((request.tenant, request.request_id, request.attempt_id))
        return answer

    def take_over(self, tenant: str, request_id: str, attempt_id: str) -> None:
        """Renew what another call has reserved, if there is anything: its gateway may be gone."""
        name = (tenant, request_id, attempt_id)
        self._hold(name)
        self._taken_over[name] = None
        self._has_taken_over.set()

    def drop(self, tenant: str, request_id: str, attempt_id: str) -> None:
        """Renew it no more for one that held it."""
        name = (tenant, request_id, attempt_id)
        self._held[name] -= 1
        if self._held[name] <= 0:
            del self._held[name]
            self._taken_over.pop(name, None)
        if not self._held:
            self._has_some.clear()

    async def run(self) -> None:
        """Renew what is held, for ever."""
        now = asyncio.get_running_loop().time
        while True:
            await self._has_some.wait()
            due_s = now() + self._lease_s / _RENEWALS_PER_LEASE
            while (left_s := due_s - now()) > 0 and await is_set_within(self._has_taken_over, left_s):
                names, self._taken_over = list(self._taken_over), {}
                self._has_taken_over.clear()
                await self._renew(names)
            await self._renew(list(self._held))

    def _hold(self, name: Name) -> None:
        self._held[name] += 1
        self._has_some.set()

    async def _renew(self, names: Sequence[Name]) -> None:
        for start in range(0, len(names), _RENEWED_AT_ONCE):
            some = names[start : start + _RENEWED_AT_ONCE]
            requests = [
                policy_pb2.ReservedRequest(tenant=tenant, request_id=request_id, attempt_id=attempt_id)
                for tenant, request_id, attempt_id in some
            ]
            try:
                answer = await self._policy.renew(requests)
            except InferFluxError as error:
                log.debug("reservations were not renewed", count=len(some), why=error.message)
                return
            self._lease_s = answer.lease_ms / 1000 or self._lease_s
