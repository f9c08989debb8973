"""InferenceService as gRPC sees it: who calls, what they want, and the way it takes from here."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from inferflux.common import checks, generation_limits, grpc_metadata, logs, subjects
from inferflux.common.errors import InvalidArgument
from inferflux.common.grpc_interceptor import current_call
from inferflux.common.tracing import Span
from inferflux.v1 import inference_pb2, inference_pb2_grpc, model_pb2, scheduler_pb2

from . import validation
from .admission import Caller, current_caller
from .generation import Call, Generation, Services
from .models import ModelRegistry
from .spans import RequestSpan, note_caller, note_job
from .submit import Prompt, new_attempt_id, resolve
from .tokenizers import Tokenizers

if TYPE_CHECKING:
    import grpc

    Context = grpc.aio.ServicerContext[Any, Any]

# Further away than this is no deadline.
_LONGEST_DEADLINE_S = 10 * 365 * 86400.0


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Errors leave as InferFluxErrors; the server's interceptor gives them their status.

    Args:
        max_text_bytes: of all texts of a request together.
        max_resume_window_s: longest window that a request may ask for.
    """

    def __init__(
        self,
        services: Services,
        models: ModelRegistry,
        text: Tokenizers,
        *,
        max_text_bytes: int,
        max_resume_window_s: int,
    ) -> None:
        self._services = services
        self._models = models
        self._text = text
        self._max_text_bytes = max_text_bytes
        self._max_resume_window_s = max_resume_window_s

    async def Chat(
        self, request: inference_pb2.ChatRequest, context: Context
    ) -> AsyncIterator[inference_pb2.ChatResponse]:
        with self._place(), self._span("Chat", context) as span:
            call = _call("Chat", context, span, model=request.model)
            async with Generation(call, self._services) as generation:
                card = await self._check(request)
                validation.check_messages(request.messages, max_text_bytes=self._max_text_bytes)
                ids = await self._text.render_chat(card.digest, request.messages, card.context_length)
                _tell_priority(context, call.caller, request.priority)
                await self._submit(generation, call, card, Prompt(ids, "messages"), request)
                while (chunk := await generation.next()) is not None:
                    yield inference_pb2.ChatResponse(chunk=chunk)

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        with self._place(), self._span("Generate", context) as span:
            call = _call("Generate", context, span, model=request.model)
            async with Generation(call, self._services) as generation:
                card = await self._check(request)
                prompt = await self._prompt(request, card)
                _tell_priority(context, call.caller, request.priority)
                await self._submit(generation, call, card, prompt, request)
                while (chunk := await generation.next()) is not None:
                    yield inference_pb2.GenerateResponse(chunk=chunk)

    async def Resume(
        self, request: inference_pb2.ResumeRequest, context: Context
    ) -> AsyncIterator[inference_pb2.ResumeResponse]:
        with self._place(), self._span("Resume", context) as span:
            _check_request_id(request.request_id)
            call = _call("Resume", context, span, request_id=request.request_id)
            async with Generation(call, self._services) as generation:
                await generation.resume(request.offset)
                while (chunk := await generation.next()) is not None:
                    yield inference_pb2.ResumeResponse(chunk=chunk)

    async def Cancel(
        self, request: inference_pb2.CancelRequest, context: Context
    ) -> inference_pb2.CancelResponse:
        _check_request_id(request.request_id)
        logs.bind_request(**logs.of_request(request.request_id, current_caller().tenant))
        await self._services.canceller.cancel(current_caller().tenant, request.request_id)
        return inference_pb2.CancelResponse()

    def _place(self) -> AbstractContextManager[None]:
        return self._services.streams.place(current_caller().tenant)

    def _span(self, method: str, context: Context) -> RequestSpan:
        waited_s = time.monotonic() - current_call().started_at
        return RequestSpan(
            self._services.tracer, method, context.invocation_metadata(), at_s=time.time() - waited_s
        )

    async def _check(
        self, request: inference_pb2.ChatRequest | inference_pb2.GenerateRequest
    ) -> model_pb2.ModelCard:
        checks.check_model_name(request.model)
        generation_limits.check_priority(request.priority)
        validation.check_resume_window(request.resume_window_s, most_s=self._max_resume_window_s)
        card = await self._models.card(request.model)
        generation_limits.check_params(
            request.params, context_length=card.context_length, vocabulary_size=card.vocabulary_size
        )
        return card

    async def _prompt(self, request: inference_pb2.GenerateRequest, card: model_pb2.ModelCard) -> Prompt:
        prompt = validation.prompt_of(request, max_text_bytes=self._max_text_bytes)
        field = request.WhichOneof("prompt") or "prompt"
        if isinstance(prompt, str):
            return Prompt(
                await self._text.tokenize(card.digest, prompt, card.context_length, field=field), field
            )
        validation.check_prompt_length(len(prompt), card, field=field)
        generation_limits.check_token_ids(prompt, card.vocabulary_size, field="token_ids.ids")
        return Prompt(prompt, field)

    async def _submit(
        self,
        generation: Generation,
        call: Call,
        card: model_pb2.ModelCard,
        prompt: Prompt,
        request: inference_pb2.ChatRequest | inference_pb2.GenerateRequest,
    ) -> None:
        n_tokens = len(prompt.token_ids)
        validation.check_prompt_length(n_tokens, card, field=prompt.field)
        job = scheduler_pb2.InferenceRequest(
            request_id=call.request_id,
            tenant=call.caller.tenant,
            model=card.name,
            prompt_token_ids=prompt.token_ids,
            params=resolve(request.params, prompt_tokens=n_tokens, context_length=card.context_length),
            priority=call.caller.capped(request.priority),
            enqueued_unix_ms=int(time.time() * 1000),
            deadline_unix_ms=call.deadline_unix_ms,
            epoch=1,
            resume_window_s=request.resume_window_s,
            attempt_id=new_attempt_id(),
        )
        note_job(call.span, call.method, job, asked_priority=request.priority)
        await generation.submit(card, job, prompt_field=prompt.field)


def _call(method: str, context: Context, span: Span, *, model: str = "", request_id: str = "") -> Call:
    """The RPC as its generation sees it. `request_id` names a request begun earlier; "" is a new one."""
    rpc = current_call()
    caller = current_caller()
    logs.bind_request(**logs.of_request(request_id or rpc.request_id, caller.tenant))
    note_caller(span, caller.tenant, request_id or rpc.request_id)
    return Call(
        method=method,
        model=model,
        request_id=request_id or rpc.request_id,
        is_id_chosen=bool(grpc_metadata.get(context.invocation_metadata(), grpc_metadata.REQUEST_ID)),
        caller=caller,
        span=span,
        deadline_unix_ms=_deadline_unix_ms(context.time_remaining()),
        started_at=rpc.started_at,
    )


def _tell_priority(context: Context, caller: Caller, asked: int) -> None:
    """Say in the trailing metadata which priority a request gets that asks for too much."""
    if (given := caller.capped(asked)) != asked:
        context.set_trailing_metadata(((grpc_metadata.PRIORITY, str(given)),))


def _check_request_id(request_id: str) -> None:
    if not subjects.is_safe_token(request_id):
        raise InvalidArgument("a request id is 1 to 64 of A-Z a-z 0-9 _ -", field="request_id")


def _deadline_unix_ms(remaining_s: float | None) -> int:
    """When the client's patience ends; 0 if it has no end."""
    if remaining_s is None or remaining_s > _LONGEST_DEADLINE_S:
        return 0
    return max(1, int((time.time() + remaining_s) * 1000))
