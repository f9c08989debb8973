"""POST /v1/chat/completions, /v1/responses and /generate."""

from __future__ import annotations

import time
from functools import partial

from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.http.openai import chat, custom_tools, generate
from inferflux.gateway.http.openai.answers import Head
from inferflux.gateway.http.openai.bodies import ChatBody, GenerateBody, ResponsesBody
from inferflux.gateway.http.openai.params import tier_of
from inferflux.gateway.http.openai.responses import responses

from .answering import Asked, GenerationPath


class ChatCompletions(GenerationPath):
    """Answers a conversation, as one JSON object or as a stream of events."""

    async def __call__(self, request: Request) -> None:
        body, prompt = await self._bodies.read(request.caller, request.body, ChatBody, chat.to_request)
        n = body.n or 1
        head = Head(f"chatcmpl-{request.request_id}", body.model, int(time.time()), tier_of(body))
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


class Responses(GenerationPath):
    """Answers an input, as one response or as its events. Nothing is stored."""

    async def __call__(self, request: Request) -> None:
        body, prompt = await self._bodies.read(
            request.caller, request.body, ResponsesBody, responses.to_request
        )
        asked = Asked([prompt], 1, partial(responses.field_names, body))
        head = responses.ResponseHead(request.request_id, int(time.time()), body)
        if body.stream:
            await self._answering.stream(request, asked, responses.ResponseStream(head))
        else:
            await self._answering.whole(request, asked, responses.Response(head))


class Generate(GenerationPath):
    """Continues a prompt, or answers a conversation. It streams unless `stream` is false."""

    async def __call__(self, request: Request) -> None:
        body, prompt = await self._bodies.read(
            request.caller, request.body, GenerateBody, generate.to_request
        )
        asked = Asked([prompt], 1, partial(generate.field_names, body))
        if body.stream is False:
            await self._answering.whole(request, asked, generate.ChunkAnswer())
        else:
            await self._answering.stream(request, asked, generate.ChunkStream())
