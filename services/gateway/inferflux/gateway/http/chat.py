"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from inferflux.gateway.off_loop import off_loop_if_large

from .answering import Answering, Asked
from .bodies import parse
from .endpoint import Request
from .openai import chat
from .openai.answers import Head, wants_usage
from .openai.bodies import ChatBody
from .openai.params import tier_of

if TYPE_CHECKING:
    from inferflux.v1 import inference_pb2


class ChatCompletions:
    """Answers a conversation, as one JSON object or as a stream of events."""

    def __init__(self, answering: Answering, clock: Callable[[], float] = time.time) -> None:
        self._answering = answering
        self._clock = clock

    async def __call__(self, request: Request) -> None:
        body, prompt = await off_loop_if_large(len(request.body), lambda: _read(request.body))
        n = body.n or 1
        asked = Asked([prompt], n, partial(chat.field_names, body))
        head = Head(f"chatcmpl-{request.request_id}", body.model, int(self._clock()), tier_of(body))
        has_logprobs = bool(body.logprobs)
        if body.stream:
            shape = chat.ChatStream(head, n=n, includes_usage=wants_usage(body), has_logprobs=has_logprobs)
            await self._answering.stream(request, asked, shape)
        else:
            await self._answering.whole(request, asked, chat.ChatAnswer(head, n=n, has_logprobs=has_logprobs))


def _read(data: bytes) -> tuple[ChatBody, inference_pb2.ChatRequest]:
    body = parse(ChatBody, data)
    return body, chat.to_request(body)
