"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from inferflux.common.calls import CallContext
from inferflux.common.errors import InferFluxError, InvalidArgument
from inferflux.gateway.pipeline import Pipeline
from inferflux.v1 import inference_pb2

from .choices import Chunks, chunks_of
from .endpoint import Request
from .errors import in_words_of, of_validation
from .openai import chat
from .openai.answers import Head
from .openai.bodies import Body, ChatBody
from .openai.params import of_choice, tier_of
from .sse import HOLD_S, EventStream

if TYPE_CHECKING:
    from inferflux.gateway.generation import Generation

_B = TypeVar("_B", bound=Body)
_MAX_ID = 64


def parse(kind: type[_B], body: bytes) -> _B:
    """The body as one of OpenAI's.

    Raises:
        InvalidArgument: it is no JSON, or a field has a wrong type.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise of_validation(error) from None


class ChatCompletions:
    """Answers a conversation, as one JSON object or as a stream of events."""

    def __init__(self, pipeline: Pipeline, clock: Callable[[], float] = time.time) -> None:
        self._pipeline = pipeline
        self._clock = clock

    async def __call__(self, request: Request) -> None:
        body = parse(ChatBody, request.body)
        asked = chat.to_request(body)
        try:
            if body.stream:
                await self._stream(request, body, asked)
            else:
                await self._answer(request, body, asked)
        except InferFluxError as error:
            raise in_words_of(error, chat.field_names(body)) from None

    async def _stream(self, request: Request, body: ChatBody, asked: inference_pb2.ChatRequest) -> None:
        stream = EventStream(request.exchange)
        includes_usage = bool(body.stream_options and body.stream_options.include_usage)
        shape = chat.ChatStream(
            self._head(request, body),
            n=body.n or 1,
            includes_usage=includes_usage,
            has_logprobs=bool(body.logprobs),
        )
        async with (
            request.exchange.cancelled_when_gone(idle_s=HOLD_S, on_idle=stream.on_idle),
            aclosing(self._chunks(request, body, asked)) as chunks,
        ):
            async for index, chunk in chunks:
                await stream.send(shape.messages(index, chunk))
            await stream.send(shape.last())
        await stream.end()

    async def _answer(self, request: Request, body: ChatBody, asked: inference_pb2.ChatRequest) -> None:
        shape = chat.ChatAnswer(self._head(request, body), n=body.n or 1, has_logprobs=bool(body.logprobs))
        async with (
            request.exchange.cancelled_when_gone(),
            aclosing(self._chunks(request, body, asked)) as chunks,
        ):
            async for index, chunk in chunks:
                shape.add(index, chunk)
        await request.exchange.answer_json(shape.to_json())

    def _chunks(self, request: Request, body: ChatBody, asked: inference_pb2.ChatRequest) -> Chunks:
        def opener(index: int) -> AbstractAsyncContextManager[Generation]:
            context = of_choice_context(request.exchange.context, index)
            return self._pipeline.chat(context, request.caller, of_choice(asked, index))

        def on_submit(generation: Generation) -> None:
            request.exchange.note_priority(generation.priority, asked=asked.priority)

        return chunks_of(opener, body.n or 1, on_submit=on_submit)

    def _head(self, request: Request, body: ChatBody) -> Head:
        request_id = request.exchange.context.request_id
        return Head(f"chatcmpl-{request_id}", body.model, int(self._clock()), tier_of(body))


def of_choice_context(context: CallContext, index: int) -> CallContext:
    """The context of one of several choices: the first has the call's request id, others add their number.

    Raises:
        InvalidArgument: the client's request id leaves no room for a number.
    """
    if index == 0:
        return context
    request_id = f"{context.request_id}-{index}"
    if len(request_id) > _MAX_ID:
        message = f"with n, a request id has at most {_MAX_ID - 4} characters"
        raise InvalidArgument(message, field="x-request-id")
    return replace(context, request_id=request_id)
