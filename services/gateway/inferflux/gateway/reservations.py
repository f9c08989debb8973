"""What this gateway has reserved with policy for its requests, renewed while they run.

A gateway that dies renews nothing any more, so policy gives back what it had reserved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from inferflux.common import logs
from inferflux.common.errors import InferFluxError
from inferflux.v1 import policy_pb2

log = logs.get()

# Of one call; policy takes no more.
_RENEWED_AT_ONCE = 512
# How often a reservation is renewed within its lease.
_RENEWALS_PER_LEASE = 3

Name = tuple[str, str, str]


class Reserves(Protocol):
    """Policy, as reservations are made with it; `inferflux.gateway.admission.Admission` is it."""

    async def reserve(self, request: policy_pb2.ReserveRequest) -> policy_pb2.ReserveResponse: ...

    async def renew(self, requests: Sequence[policy_pb2.ReservedRequest]) -> None: ...


class Reservations:
    """Reserves, and holds what was reserved until it is dropped. `run` renews it."""

    def __init__(self, policy: Reserves) -> None:
        self._policy = policy
        self._held: dict[Name, None] = {}
        self._lease_s = 0.0
        self._has_some = asyncio.Event()

    async def reserve(self, request: policy_pb2.ReserveRequest) -> policy_pb2.ReserveResponse:
        """Reserve what a request may use.

        Raises:
            ResourceExhausted: it would be over a limit.
            InferFluxError: policy says no, or does not answer.
        """
        answer = await self._policy.reserve(request)
        if answer.lease_ms:
            self._lease_s = answer.lease_ms / 1000
            self._held[(request.tenant, request.request_id, request.attempt_id)] = None
            self._has_some.set()
        return answer

    def drop(self, tenant: str, request_id: str, attempt_id: str) -> None:
        """Renew it no more: it is settled now."""
        self._held.pop((tenant, request_id, attempt_id), None)
        if not self._held:
            self._has_some.clear()

    async def run(self) -> None:
        """Renew what is held, for ever."""
        while True:
            await self._has_some.wait()
            await asyncio.sleep(self._lease_s / _RENEWALS_PER_LEASE)
            await self._renew_all()

    async def _renew_all(self) -> None:
        names = list(self._held)
        for start in range(0, len(names), _RENEWED_AT_ONCE):
            some = names[start : start + _RENEWED_AT_ONCE]
            requests = [
                policy_pb2.ReservedRequest(tenant=tenant, request_id=request_id, attempt_id=attempt_id)
                for tenant, request_id, attempt_id in some
            ]
            try:
                await self._policy.renew(requests)
            except InferFluxError as error:
                log.debug("reservations were not renewed", count=len(some), why=error.message)
                return
