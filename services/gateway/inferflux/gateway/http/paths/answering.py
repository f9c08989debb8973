"""Generations to an answer: all choices of a call, streamed as events or collected into one object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from inferflux.common.calls.calls import CallContext
from inferflux.common.contract.callers import rate_limits
from inferflux.common.contract.errors import InferFluxError, InvalidArgument
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.http.front.sse import HOLD_S, Events, EventStream
from inferflux.gateway.http.openai.answers import Head, Json
from inferflux.gateway.http.openai.choice_count import check_choices
from inferflux.gateway.policy.caller import Caller
from inferflux.gateway.request.constraints import UNENFORCED_HEADER
from inferflux.gateway.request.pipeline import Pipeline
from inferflux.v1 import inference_pb2, tokens_pb2

from .choices import Chunks, OnBegun, chunks_of
from .reading import BodyReader

if TYPE_CHECKING:
    from inferflux.gateway.request.generation import Generation

_MAX_ID = 64
# Which model answers, and which adapter: the name in a body may be an alias.
_MODEL_HEADER = "x-inferflux-model"
_SAFE = " /:@!$&'()*+,;=-._~[]{}"

GenerationRequest = inference_pb2.ChatRequest | inference_pb2.GenerateRequest


class StreamShape(Events, Protocol):
    """Chunks to messages of a stream."""

    def messages(
        self, index: int, chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None, /
    ) -> list[Json]: ...

    def last(self) -> list[Json]: ...


class AnswerShape(Protocol):
    """Chunks to one object."""

    def add(
        self, index: int, chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None, /
    ) -> object: ...

    def to_json(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A call's request.

    Attributes:
        prompts: a request for each prompt.
        n: choices of each prompt.
        field_names: gives what the client calls fields that have another name inside. Errors alone ask.
        head: of the answer, which is told what computes it.
    """

    prompts: Sequence[GenerationRequest]
    n: int
    field_names: Callable[[], Mapping[str, str]]
    head: Head | None = None


class Answering:
    """Runs the choices of a call and sends their answer."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def stream(self, request: Request, asked: Asked, shape: StreamShape) -> None:
        """Send events as the chunks come."""
        stream = EventStream(request.exchange, shape)
        try:
            async with (
                request.exchange.cancelled_when_gone(idle_s=HOLD_S, on_idle=stream.on_idle),
                aclosing(self._chunks(request, asked)) as chunks,
            ):
                async for index, chunk, delta in chunks:
                    await stream.send(shape.messages(index, chunk, delta))
                await stream.send(shape.last())
        except InferFluxError as error:
            raise in_words_of(error, asked.field_names()) from None
        await stream.end()

    async def whole(self, request: Request, asked: Asked, shape: AnswerShape) -> None:
        """Send one object when all choices have ended."""
        try:
            async with (
                request.exchange.cancelled_when_gone(),
                aclosing(self._chunks(request, asked)) as chunks,
            ):
                async for index, chunk, delta in chunks:
                    shape.add(index, chunk, delta)
        except InferFluxError as error:
            raise in_words_of(error, asked.field_names()) from None
        await request.exchange.answer_json(shape.to_json())

    def _chunks(self, request: Request, asked: Asked) -> Chunks:
        def on_begun(generation: Generation) -> None:
            prepared = generation.prepared
            request.exchange.note_priority(prepared.job.priority, asked=asked.prompts[0].priority)
            request.exchange.headers.update(rate_limits.headers_of(generation.limits))
            if asked.head is not None:
                asked.head.know(prepared.digest, len(prepared.job.prompt_token_ids))
            if prepared.unenforced:
                request.exchange.headers[UNENFORCED_HEADER] = prepared.unenforced
            request.exchange.headers[_MODEL_HEADER] = quote(prepared.served_as, safe=_SAFE)

        return self.chunks(request.exchange.context, request.caller, asked, on_begun=on_begun)

    def chunks(
        self,
        context: CallContext,
        caller: Caller,
        asked: Asked,
        *,
        on_begun: OnBegun = lambda _generation: None,
    ) -> Chunks:
        """Chunks of all choices; those of a prompt are numbered together.

        Raises:
            InvalidArgument: there are too many.
        """
        check_choices(prompts=len(asked.prompts), n=asked.n)
        # An id without room for the last number is refused before the first choice runs.
        of_choice_context(context, len(asked.prompts) * asked.n - 1, first=0)

        def opener(index: int) -> AbstractAsyncContextManager[Generation]:
            prompt = index // asked.n
            own_context = of_choice_context(context, index, first=prompt * asked.n)
            own = asked.prompts[prompt]
            if isinstance(own, inference_pb2.ChatRequest):
                return self._pipeline.chat(own_context, caller, own)
            opened = self._pipeline.generate(own_context, caller, own)
            return opened if len(asked.prompts) == 1 else _of_prompt(opened, prompt)

        return chunks_of(opener, prompts=len(asked.prompts), n=asked.n, on_begun=on_begun)


class GenerationPath:
    """A path that makes a body into requests, and answers with their generations."""

    def __init__(self, answering: Answering, bodies: BodyReader) -> None:
        self._answering = answering
        self._bodies = bodies


@asynccontextmanager
async def _of_prompt(
    opened: AbstractAsyncContextManager[Generation], index: int
) -> AsyncIterator[Generation]:
    """A generation of one of several prompts, with errors that say which."""
    name = f"prompt[{index}]"
    try:
        async with opened as generation:
            yield generation
    except InferFluxError as error:
        raise in_words_of(error, {"text": name, "token_ids": name}) from None


def of_choice_context(context: CallContext, index: int, *, first: int) -> CallContext:
    """The context of one of several choices: the first has the call's request id, others add their number.

    Args:
        first: the first choice of the same prompt.

    Raises:
        InvalidArgument: the client's request id leaves no room for a number.
    """
    if index == 0:
        return context
    request_id = _id_of(context, index)
    if len(request_id) > _MAX_ID:
        message = f"for several choices, a request id has at most {_MAX_ID - 4} characters"
        raise InvalidArgument(message, field="x-request-id")
    same_prompt_as = _id_of(context, first) if index != first else ""
    return replace(context, request_id=request_id, same_prompt_as=same_prompt_as, choice=index - first)


def _id_of(context: CallContext, index: int) -> str:
    return f"{context.request_id}-{index}" if index else context.request_id
