"""The receiving end of subjects that a handler serves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Protocol

from inferflux.common.contract.errors import InferFluxError, Internal
from inferflux.common.process import logs, metrics
from inferflux.common.process.bad_messages import BadMessages, LogThrottle

from .pinned_nats import decode_headers, decode_subject

log = logs.get()

# Error replies, as NATS services send them.
ERROR_HEADER = "Nats-Service-Error"
ERROR_CODE_HEADER = "Nats-Service-Error-Code"
ERROR_REASON_HEADER = "Inferflux-Error-Reason"

_MAX_WAITING = 65_536
# Where replies go. A sender that named another subject would have its receiver publish what itself may not.
_INBOXES = "_INBOX"

_bad = BadMessages(metrics.BUS_BAD_MESSAGES)


class Sender(Protocol):
    async def publish(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> None: ...


class Message:
    """A message for a handler."""

    __slots__ = ("__dict__", "_header_block", "_reply", "_sender", "_subject", "data")

    def __init__(
        self, sender: Sender, subject: bytes, reply: str, data: bytes, header_block: bytes | None
    ) -> None:
        self.data = data
        self._sender = sender
        self._subject = subject
        self._reply = reply
        self._header_block = header_block

    @property
    def subject(self) -> str:
        return self._subject.decode("utf-8", "replace")

    @cached_property
    def headers(self) -> Mapping[str, str]:
        return decode_headers(self._header_block)[1]

    @property
    def wants_reply(self) -> bool:
        return bool(self._reply)

    async def respond(self, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Answer a request; without effect on a message that is none."""
        if self._reply:
            await self._sender.publish(self._reply, payload, headers)


class Subscription:
    """Hands messages to a handler, one after the other, in the order they came.

    An InferFluxError out of the handler is answered to the requester, who has it raised from `request`;
    any other error is logged, counted, and answered as Internal.
    """

    def __init__(
        self,
        sender: Sender,
        subject: str,
        handler: Callable[[Message], Awaitable[None]],
        close: Callable[[Subscription], None],
    ) -> None:
        self.subject = subject
        self._sender = sender
        self._handler = handler
        self._close = close
        self._waiting: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._throttle = LogThrottle()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"serve {subject}")

    def on_message(self, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            metrics.BUS_MESSAGES_LOST.labels(subscription="served").inc()
            return
        reply_to = decode_subject(reply) if reply else ""
        if reply_to is None or (reply_to and not reply_to.startswith(_INBOXES)):
            _bad.note("reply_subject", f"no subject: {reply[:100]!r}", subject=self.subject)
            return
        self._waiting.append(Message(self._sender, subject, reply_to, data, headers))
        self._arrived.set()

    async def close(self) -> None:
        """Unsubscribe; a handler that runs now is cancelled."""
        self._close(self)
        self._task.cancel()
        if self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            while self._waiting:
                await self._handle(self._waiting.popleft())
            self._arrived.clear()

    async def _handle(self, message: Message) -> None:
        try:
            await self._handler(message)
        except InferFluxError as error:
            await self._refuse(message, error)
        except Exception:
            metrics.UNEXPECTED_ERRORS.labels(where="bus").inc()
            log.exception("a handler failed", subject=message.subject)
            await self._refuse(message, Internal(f"the handler of {self.subject} failed"))

    async def _refuse(self, message: Message, error: InferFluxError) -> None:
        if not message.wants_reply:
            unlogged = None if isinstance(error, Internal) else self._throttle.unlogged(error.reason)
            if unlogged is not None:
                about = {"subject": message.subject, "reason": error.reason, "unlogged": unlogged}
                log.warning("a message was refused", **about)
            return
        headers = {
            ERROR_CODE_HEADER: str(error.code),
            ERROR_REASON_HEADER: error.reason,
            ERROR_HEADER: error.message,
        }
        try:
            await message.respond(b"", headers)
        except InferFluxError as unsent:
            log.warning("could not answer", subject=message.subject, reason=unsent.reason)
