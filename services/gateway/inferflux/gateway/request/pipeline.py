"""The way of a call, whichever protocol it came by: prepared, submitted, answered.

A front translates: its protocol's call into a `CallContext` and a message of `inference.proto`, chunks and
InferFluxErrors back. To disconnect a client, it cancels the task that serves the call. That holds in every
phase: nothing is queued or running for a client that has gone, unless it asked for a resume window.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inferflux.api.errors import without_keys
from inferflux.common.calls.calls import CallContext
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process import logs
from inferflux.common.tracing import Tracer
from inferflux.gateway.images.intake import ImageIntake
from inferflux.gateway.policy.caller import Caller
from inferflux.v1 import inference_pb2, model_pb2

from .call import Call, RequestSpan, note_caller
from .generation import Generation
from .preparation import Preparation, Texts
from .prompts import Prompts, Tokenizes
from .routing import ModelCards, Routing
from .services import Services
from .token_calls import TokenCalls


class Pipeline:
    """Every method raises InferFluxErrors.

    Args:
        max_text_bytes: of all texts of a request together.
        max_resume_window_s: longest window that a request may ask for.
        images: takes those of messages; without it, there are none.
        zone: where workers are preferred; empty: nowhere.

    Attributes:
        routing: finds models by the names that requests have for them.
        tokens: answers what needs no generation.
    """

    def __init__(
        self,
        models: ModelCards,
        tokenizers: Tokenizes,
        services: Services,
        tracer: Tracer,
        *,
        max_text_bytes: int,
        max_resume_window_s: int,
        images: ImageIntake | None = None,
        zone: str = "",
    ) -> None:
        prompts = Prompts(tokenizers, max_text_bytes=max_text_bytes, images=images)
        self.routing = Routing(models, services.accounts.metrics)
        self.tokens = TokenCalls(self.routing, prompts, tokenizers, max_text_bytes=max_text_bytes)
        self._preparation = Preparation(
            self.routing,
            prompts,
            tokenizers,
            max_text_bytes=max_text_bytes,
            max_resume_window_s=max_resume_window_s,
            zone=zone,
            has_answer_cache=services.answers is not None,
        )
        self._services = services
        self._tracer = tracer

    @asynccontextmanager
    async def chat(
        self, context: CallContext, caller: Caller, request: inference_pb2.ChatRequest
    ) -> AsyncIterator[Generation]:
        """The generation of a conversation's next message, submitted."""
        async with self._generation("Chat", context, caller, model=request.model) as (call, generation):
            await generation.submit(await self._preparation.chat(call, request))
            yield generation

    @asynccontextmanager
    async def generate(
        self, context: CallContext, caller: Caller, request: inference_pb2.GenerateRequest
    ) -> AsyncIterator[Generation]:
        """The generation that continues a prompt, submitted."""
        async with self._generation("Generate", context, caller, model=request.model) as (call, generation):
            await generation.submit(await self._preparation.generate(call, request))
            yield generation

    @asynccontextmanager
    async def texts(
        self,
        method: str,
        context: CallContext,
        caller: Caller,
        card: model_pb2.ModelCard,
        texts: Texts,
        *,
        priority: int,
    ) -> AsyncIterator[Generation]:
        """The job that makes vectors of some texts, submitted. Its last chunk has them.

        Args:
            method: Embed or Rerank.
            card: as `Routing` gave it. The texts have been checked.
        """
        async with self._generation(method, context, caller, model=card.name) as (call, generation):
            await generation.submit(self._preparation.texts(call, card, texts, priority=priority))
            yield generation

    @asynccontextmanager
    async def resume(
        self, context: CallContext, caller: Caller, request: inference_pb2.ResumeRequest
    ) -> AsyncIterator[Generation]:
        """A generation that was submitted by another call, from an offset on."""
        _check_request_id(request.request_id)
        own = self._generation("Resume", context, caller, request_id=request.request_id)
        async with own as (_call, generation):
            await generation.resume(request.offset)
            yield generation

    async def cancel(self, caller: Caller, request_id: str) -> None:
        """Cancel a request and have it confirmed.

        Raises:
            NotFound: it is neither queued nor running.
            Unavailable: the scheduler does not answer; a worker that runs it has been told all the same.
        """
        _check_request_id(request_id)
        logs.bind_request(**logs.of_request(request_id, caller.tenant))
        await self._services.readers.canceller.cancel(caller.tenant, request_id)

    @asynccontextmanager
    async def _generation(
        self, method: str, context: CallContext, caller: Caller, *, model: str = "", request_id: str = ""
    ) -> AsyncIterator[tuple[Call, Generation]]:
        """A place among the streams, a span, and a generation, until the call has ended.

        Args:
            request_id: of a request begun by another call.
        """
        request_id = request_id or context.request_id
        at_s = time.time() - (time.monotonic() - context.started_at)
        with (
            self._services.streams.place(caller.tenant),
            RequestSpan(self._tracer, method, context.traceparent, at_s=at_s) as span,
        ):
            logs.bind_request(**logs.of_request(request_id, caller.tenant))
            note_caller(span, caller.tenant, request_id)
            prompt = self._services.accounts.trail.text()
            call = Call(method, without_keys(model), request_id, caller, span, context, prompt)
            async with Generation(call, self._services) as generation:
                yield call, generation


def _check_request_id(request_id: str) -> None:
    if not subjects.is_safe_token(request_id):
        raise InvalidArgument("a request id is 1 to 64 of A-Z a-z 0-9 _ -", field="request_id")
