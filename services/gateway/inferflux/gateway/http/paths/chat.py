"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.http.openai import chat, custom_tools
from inferflux.gateway.http.openai.answers import Head
from inferflux.gateway.http.openai.bodies import ChatBody
from inferflux.gateway.http.openai.params import tier_of

from .answering import Answering, Asked
from .reading import BodyReader


class ChatCompletions:
    """Answers a conversation, as one JSON object or as a stream of events."""

    def __init__(
        self, answering: Answering, bodies: BodyReader, clock: Callable[[], float] = time.time
    ) -> None:
        self._answering = answering
        self._bodies = bodies
        self._clock = clock

    async def __call__(self, request: Request) -> None:
        body, prompt = await self._bodies.read(request.caller, request.body, ChatBody, chat.to_request)
        n = body.n or 1
        head = Head(f"chatcmpl-{request.request_id}", body.model, int(self._clock()), tier_of(body))
        asked = Asked([prompt], n, partial(chat.field_names, body), head)
        has_logprobs, is_legacy = bool(body.logprobs), chat.is_legacy(body)
        customs = custom_tools.names_of(body.tools)
        if body.stream:
            options = body.stream_options
            stream = chat.ChatStream(
                head, n=n, has_logprobs=has_logprobs, options=options, is_legacy=is_legacy, customs=customs
            )
            await self._answering.stream(request, asked, stream)
        else:
            answer = chat.ChatAnswer(
                head, n=n, has_logprobs=has_logprobs, is_legacy=is_legacy, customs=customs
            )
            await self._answering.whole(request, asked, answer)
