"""Makes the calls, in each of the ways a client can make and break one."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from inferflux.common.calls.grpc_metadata import SERVICE_KEY

from .findings import Findings
from .messages import Messages
from .methods import Method

# What the client's library calls a write to a call that the server has ended.
_OWN_ERROR = "Internal error from Core"
# A call may take as long as its own deadline, which is shorter, and what the server needs to notice.
_HANG_S = 30.0
# How a server alone ends a call; a client may end one in other ways before the server has seen it.
_BY_SERVER = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INTERNAL,
}
_DEADLINES_S = (0.001, 0.05, 0.5, 2.0, 5.0)
_ODD_METADATA = (
    ("x-request-id", "a b"),
    ("x-request-id", "same"),
    ("x-request-id", "x" * 5000),
    ("traceparent", "00-zz-zz-01"),
    ("grpc-timeout", "99999999S"),
    ("x-odd-bin", b"\0\xff" * 50),
    ("authorization", "Basic eDp5"),
    ("accept-encoding", "zstd"),
)


class Fuzzer:
    """Calls with everything drawn from one random source.

    Args:
        channels: by server; several each, as a connection that is cut must not end the others' calls.
        keys: what a call's credential is drawn from; "" is none.
        service_key: what half of the calls prove with that a service makes them.
        texts: what texts of messages are drawn from, beside odd ones.
        findings: gets what comes of the calls.
    """

    def __init__(
        self,
        seed: int,
        channels: Mapping[str, grpc.aio.Channel],
        keys: tuple[str, ...],
        texts: tuple[str, ...],
        service_key: str,
        findings: Findings,
    ) -> None:
        self._random = random.Random(seed)
        self._channels = channels
        self._keys = keys
        self._service_key = service_key
        self._messages = Messages(self._random, texts)
        self._findings = findings

    async def call(self, method: Method, request_id: str) -> None:
        """One call of this method, however it ends.

        Args:
            request_id: of this call alone; some calls use another one.
        """
        metadata = self._metadata(request_id)
        bodies = [self._messages.draw(method.request) for _ in range(self._random.choice((1, 1, 1, 2, 5)))]
        deadline_s = self._random.choice(_DEADLINES_S)
        leave_after = self._random.choice((None, None, None, "start", "send", "first"))
        what = f"{method.server} {method.path}"
        rpc: Any = getattr(self._channels[method.server], method.kind)(method.path)
        is_streaming = method.kind.startswith("stream")
        try:
            async with asyncio.timeout(_HANG_S):
                request = self._all(bodies, leave_after) if is_streaming else bodies[0]
                call = rpc(request, metadata=metadata, timeout=deadline_s)
                await self._finish(call, leave_after)
                code, message = await call.code(), await call.details()
        except TimeoutError:
            self._findings.hangs.append(f"{what}: no end after {_HANG_S:g} s, deadline {deadline_s:g} s")
            return
        except (ValueError, TypeError, grpc.aio.UsageError):  # the client's library refuses the metadata
            self._findings.codes["refused by the client"] += 1
            return
        if method.is_audited and code in _BY_SERVER and metadata.count(("x-request-id", request_id)):
            self._findings.answered[request_id] = f"{what}: {code}"
        name = code.name if code is not None else "UNKNOWN"
        if message == _OWN_ERROR:
            name = "ended while the client wrote"
        self._findings.codes[name] += 1
        if code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN) and message != _OWN_ERROR:
            body = bodies[0][:200].hex()
            self._findings.internal.append(f"{what}: {name} {message}; {metadata}; body {body}")

    async def _finish(self, call: Any, leave_after: str | None) -> None:
        """Read to the end, or leave where `leave_after` says."""
        with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            if leave_after == "start":
                call.cancel()
            elif leave_after == "send":
                await call.wait_for_connection()
                await asyncio.sleep(self._random.choice((0, 0.001, 0.02)))
                call.cancel()
            elif not hasattr(call, "__aiter__"):
                await call
            else:
                async for _ in call:
                    if leave_after == "first":
                        call.cancel()
                        break

    async def _all(self, bodies: list[bytes], leave_after: str | None) -> AsyncIterator[bytes]:
        for body in bodies:
            yield body
        if leave_after == "first":
            await asyncio.sleep(1.0)  # open, and silent

    def _metadata(self, request_id: str) -> tuple[tuple[str, str | bytes], ...]:
        pairs: list[tuple[str, str | bytes]] = []
        if key := self._random.choice(self._keys):
            name, value = self._random.choice((("authorization", f"Bearer {key}"), ("x-api-key", key)))
            pairs.append((name, value))
        if self._random.random() < 0.5:
            pairs.append((SERVICE_KEY, self._service_key))
        if self._random.random() < 0.15:
            pairs.append(self._random.choice(_ODD_METADATA))
        elif self._random.random() < 0.3:
            pairs.append(("x-request-id", f"fuzz-{self._random.randrange(500)}"))
        else:
            pairs.append(("x-request-id", request_id))
        return tuple(pairs)


def unknown_key() -> str:
    return f"ifx_{secrets.token_urlsafe(32)}"
