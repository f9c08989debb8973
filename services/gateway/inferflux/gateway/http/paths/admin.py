"""POST /v1/admin/METHOD: the RPCs of administrators, with messages in protobuf's JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from inferflux.common.calls.grpc_interceptor import CallInfo, serving
from inferflux.common.process.tasks import off_loop_if_large
from inferflux.gateway.http.errors.errors import BodyTooLarge
from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.http.front.sse import HOLD_S, EventStream
from inferflux.gateway.http.openai.answers import UnnamedEvents
from inferflux.gateway.operator.admin_methods import AdminMethod

from .message_json import parse_message

# Protobuf's JSON is read and written field by field. Threads do that for more bytes.
_LARGE_BYTES = 8 << 10


class AdminCall:
    """Serves one of them. What it streams are events.

    Args:
        max_message_bytes: the largest message it takes, as over gRPC.
    """

    def __init__(self, method: AdminMethod, *, max_message_bytes: int) -> None:
        self._method = method
        self._max_message_bytes = max_message_bytes

    async def __call__(self, request: Request) -> None:
        message = await self._message(request.body)
        exchange = request.exchange
        with serving(CallInfo(exchange.context, request.caller)):
            reply = self._method.call(message, None)
            if isinstance(reply, AsyncIterator):
                await self._stream(request, reply)
            else:
                await exchange.answer_json(await _json(await reply))

    async def _message(self, body: bytes) -> Message:
        kind = self._method.request
        message = await off_loop_if_large(len(body), lambda: parse_message(kind, body), above=_LARGE_BYTES)
        if message.ByteSize() > self._max_message_bytes:
            why = f"the message has more than {self._max_message_bytes} bytes"
            raise BodyTooLarge(why, reason="BODY_TOO_LARGE")
        return message

    async def _stream(self, request: Request, replies: Any) -> None:
        exchange = request.exchange
        events = EventStream(exchange, UnnamedEvents())
        async with (
            exchange.cancelled_when_gone(idle_s=HOLD_S, on_idle=events.on_idle),
            aclosing(replies),
        ):
            async for reply in replies:
                await events.send([await _json(reply)])
            await events.end()


async def _json(message: Message) -> dict[str, Any]:
    is_large = message.ByteSize() > _LARGE_BYTES
    return await asyncio.to_thread(_as_json, message) if is_large else _as_json(message)


def _as_json(message: Message) -> dict[str, Any]:
    """The message under the fields' own names, those with their defaults too."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
