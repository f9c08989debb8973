"""Reads token streams straight from NATS, live and late.

It needs nats-py: `pip install inferflux-client[nats]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any, Self

import nats
import nats.errors
import nats.js.errors
from google.protobuf.message import DecodeError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from inferflux.api.errors import InvalidArgument, PermissionDenied, Unauthenticated, Unavailable, from_failed
from inferflux.api.ordering import InOrder
from inferflux.api.tls import Tls
from inferflux.api.token_subjects import TOKENS_STREAM, inbox_prefix, inbox_prefix_of, is_safe_token, tokens
from inferflux.v1 import tokens_pb2

# After this silence the replay stream is asked: what was lost with a connection is there.
_SILENCE_S = 2.0
_REPLAY_PAUSE_S = 0.5
_CONNECT_LIMIT_S = 10.0
_REPLAY_LIMIT_S = 5.0

NATS_FORBIDDEN = "NATS_FORBIDDEN"
_REFUSAL = re.compile(r"permissions violation for subscription to \"([^\"]+)\"")


class TokenReader:
    """Reads along with any request whose token subject may be read. Use as an async context manager.

    Args:
        servers: NATS servers, as `nats.connect` takes them; user and password may be part of them.
        gap_limit_s: how long missing tokens may stay missing.
        connect_options: further arguments of `nats.connect`, such as `tls`, which INFERFLUX_TLS_CA says too.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        gap_limit_s: float = 30.0,
        **connect_options: Any,
    ) -> None:
        self._servers = servers if isinstance(servers, str) else list(servers)
        self._gap_limit_s = gap_limit_s
        tls = Tls.from_env(os.environ)
        self._refused: set[str] = set()
        self._rejected = asyncio.Event()
        self._problem = ""
        self._options = {
            "max_reconnect_attempts": -1,
            # A user may read the replies to its own requests alone.
            "inbox_prefix": inbox_prefix_of(connect_options["user"])
            if "user" in connect_options
            else inbox_prefix(servers),
            "error_cb": self._on_error,
            **({"tls": tls.context()} if tls.is_on else {}),
            **connect_options,
        }
        self._nats = nats.NATS()

    async def __aenter__(self) -> Self:
        """Connect. Later a lost connection is made again, however long that takes.

        Raises:
            Unauthenticated: NATS does not take user and password.
            Unavailable: no server answers within some seconds.
        """
        connecting = asyncio.ensure_future(self._nats.connect(self._servers, **self._options))
        rejected = asyncio.ensure_future(self._rejected.wait())
        try:
            await asyncio.wait(
                (connecting, rejected), timeout=_CONNECT_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if connecting.done():
                connecting.result()
                return self
        finally:
            rejected.cancel()
            if not connecting.done():
                connecting.cancel()
                await asyncio.gather(connecting, return_exceptions=True)
                await self._nats.close()
        if self._rejected.is_set():
            raise Unauthenticated("NATS does not take this user and password", reason="NATS_UNAUTHENTICATED")
        message = f"no NATS server answers within {_CONNECT_LIMIT_S:g} s: {self._problem}"
        raise Unavailable(message, reason="NATS_UNAVAILABLE")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._nats.close()

    async def read(
        self, tenant: str, request_id: str, *, offset: int = 0
    ) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        """A request's chunks from token `offset` on, up to the terminal chunk: each token once, in order.

        A request that is not known yet is waited for. A request that has ended is read from the replay
        stream, which keeps tokens for some minutes.

        Raises:
            InvalidArgument: a name that cannot be in a subject.
            PermissionDenied: this user may not read the tenant's tokens.
            InferFluxError: the generation failed; TOKENS_LOST: some of its tokens are gone.
        """
        for name, value in (("tenant", tenant), ("request_id", request_id)):
            if not is_safe_token(value):
                raise InvalidArgument(f"{name} must be 1 to 64 of A-Z a-z 0-9 _ -", field=name)
        subject = tokens(tenant, request_id)
        self._refused.discard(subject.lower())
        live = await self._nats.subscribe(subject)
        try:
            # nats-py sends the first PING before what it has buffered: a refusal precedes the second PONG.
            for _ in range(2):
                await self._nats.flush()
            self._check_allowed(subject, tenant)
            merged, gap = InOrder(offset), _Gap(self._gap_limit_s)
            chunks = await self._replayed(subject)
            while True:
                for chunk in chunks:
                    for accepted in merged.offer(chunk):
                        if accepted.HasField("failed"):
                            raise from_failed(accepted.failed)
                        yield accepted
                if merged.state.is_ended:
                    return
                self._check_allowed(subject, tenant)
                chunks = await self._next(live, subject, gap.wait_s(merged.missing, time.monotonic()))
        finally:
            # A loop that was left early ends its generator late, after the connection.
            with contextlib.suppress(nats.errors.ConnectionClosedError):
                await live.unsubscribe()

    async def _on_error(self, error: Exception) -> None:
        self._problem = str(error)
        if "authorization violation" in self._problem.lower():
            self._rejected.set()
        # nats-py has put it into small letters: names are compared in them.
        found = _REFUSAL.search(str(error))
        if found is not None:
            self._refused.add(found[1])

    def _check_allowed(self, subject: str, tenant: str) -> None:
        if subject.lower() in self._refused:
            message = f"this user of NATS may not read the tokens of the tenant {tenant}"
            raise PermissionDenied(message, reason=NATS_FORBIDDEN)

    async def _next(self, live: Any, subject: str, wait_s: float) -> list[tokens_pb2.TokenChunk]:
        """The next live chunk, or after `wait_s` seconds what the replay stream has."""
        if wait_s <= 0:
            return await self._replayed(subject)
        try:
            message = await live.next_msg(timeout=wait_s)
        except nats.errors.TimeoutError:
            return await self._replayed(subject)
        return _decoded([message.data])

    async def _replayed(self, subject: str) -> list[tokens_pb2.TokenChunk]:
        """Chunks that the replay stream holds of a subject; none while it does not answer."""
        inbox = self._nats.new_inbox()
        stored = await self._nats.subscribe(inbox)
        # Only the creation of a consumer with a name says in its subject what it reads.
        consumer = ConsumerConfig(
            name=secrets.token_hex(8),
            deliver_subject=inbox,
            filter_subject=subject,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_REPLAY_LIMIT_S,
        )
        data: list[bytes] = []
        try:
            made = await self._nats.jsm().add_consumer(TOKENS_STREAM, consumer)
            # It may have begun before the answer.
            begun = made.delivered.consumer_seq if made.delivered else 0
            async with asyncio.timeout(_REPLAY_LIMIT_S):
                for _ in range((made.num_pending or 0) + begun):
                    message = await stored.next_msg(timeout=_REPLAY_LIMIT_S)
                    data.append(message.data)
        except (nats.js.errors.Error, nats.errors.Error, TimeoutError):
            pass
        finally:
            await stored.unsubscribe()
        return _decoded(data)


class _Gap:
    """Timer of missing tokens."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._first: int | None = None
        self._since_s = 0.0
        self._replay_due_s = 0.0

    def wait_s(self, missing: range | None, now_s: float) -> float:
        """Seconds to wait for a live message before the replay stream is asked; 0: not at all.

        Raises:
            Unavailable: the same tokens have been missing for too long.
        """
        if missing is None:
            self._first = None
            return _SILENCE_S
        if missing.start != self._first:
            self._first, self._since_s, self._replay_due_s = missing.start, now_s, now_s
        elif now_s - self._since_s > self._limit_s:
            message = f"tokens {missing.start} to {missing.stop - 1} were lost"
            raise Unavailable(message, reason="TOKENS_LOST", retry_delay_s=None)
        if now_s < self._replay_due_s:
            return self._replay_due_s - now_s
        self._replay_due_s = now_s + _REPLAY_PAUSE_S
        return 0.0


def _decoded(messages: Sequence[bytes]) -> list[tokens_pb2.TokenChunk]:
    """Chunks; a message that is none is left out: any client may have published it."""
    chunks = []
    for data in messages:
        try:
            chunks.append(tokens_pb2.TokenChunk.FromString(data))
        except DecodeError:
            continue
    return chunks
