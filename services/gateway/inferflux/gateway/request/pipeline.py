"""The way of a call, whichever protocol it came by: admit, validate, render, tokenize, submit.

A front translates: its protocol's call into a `CallContext` and a message of `inference.proto`, chunks and
InferFluxErrors back. To disconnect a client, it cancels the task that serves the call. That holds in every
phase: nothing is queued or running for a client that has gone, unless it asked for a resume window.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from inferflux.api.errors import without_keys
from inferflux.common.calls.calls import CallContext
from inferflux.common.contract import checks, subjects
from inferflux.common.contract.errors import Aborted, InvalidArgument
from inferflux.common.contract.models.model_roles import check_role
from inferflux.common.contract.requests import adapters, generation_limits
from inferflux.common.contract.requests.images import without_placeholders
from inferflux.common.process import logs
from inferflux.common.text.constraints.schema import named
from inferflux.common.text.guardrails.refusals import TEXT_NEEDED
from inferflux.gateway.answers.cache import Query, query_of
from inferflux.gateway.images.inputs import OF_MESSAGES
from inferflux.gateway.images.intake import ImageIntake
from inferflux.gateway.policy.caller import Caller
from inferflux.v1 import generation_pb2, inference_pb2, model_pb2, scheduler_pb2, tokenizer_pb2

from . import validation
from .call import Call
from .chat_reader import format_of
from .constraints import Compiles, Constraints
from .generation import Generation, Services
from .off_loop import LARGE_SCHEMA, off_loop_if_large
from .spans import RequestSpan, note_caller, note_job
from .submit import Prompt, new_call_id_prefix, resolve
from .tools import functions_of, schema_bytes, tool_use_of
from .words import TokenizesTexts, check_scores, in_tokens

log = logs.get()


class Admits(Protocol):
    """Policy, as the pipeline asks it; `inferflux.gateway.policy.admission.Admission` is it."""

    async def admit(self, scope: str, context: CallContext) -> Caller: ...


class ModelCards(Protocol):
    """The served models, as `inferflux.gateway.models.models.ModelRegistry` knows them."""

    def is_split(self, name: str) -> bool: ...

    def split_for(self, alias: str, caller: Caller) -> str: ...

    async def settled(self) -> None: ...

    async def meant(self, name: str, role: model_pb2.ModelRole.ValueType, caller: Caller) -> str: ...

    async def choose(self, name: str) -> tuple[str, str]: ...

    async def card(self, name: str) -> model_pb2.ModelCard: ...

    def adapter(self, model: str, name: str) -> model_pb2.AdapterCard: ...


class Tokenizes(Compiles, TokenizesTexts, Protocol):
    """Renders, tokenizes and tries constraints; `inferflux.gateway.tokenizer.tokenizers.Tokenizers` does."""

    async def render_chat(
        self,
        digest: str,
        messages: Sequence[inference_pb2.ChatMessage],
        context_length: int,
        *,
        tools: Sequence[inference_pb2.Tool] = (),
        images: Sequence[tokenizer_pb2.StoredMedia] = (),
        projector: str = "",
        asked: tokenizer_pb2.RenderChat | None = None,
    ) -> tokenizer_pb2.RenderedChat: ...

    async def describe(self, digest: str) -> tokenizer_pb2.TokenizerDescribed: ...

    async def tokenize(
        self, digest: str, text: str, context_length: int, *, field: str, is_bare: bool = False
    ) -> Sequence[int]: ...

    async def tokenize_gap(
        self, digest: str, prefix: str, suffix: str, context_length: int
    ) -> Sequence[int]: ...

    async def detokenize(self, digest: str, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of one job that embeds.

    Attributes:
        field: that errors name.
        text: all of them, where they are known.
    """

    token_ids: Sequence[Sequence[int]]
    field: str
    text: str | None


class Pipeline:
    """Every method raises InferFluxErrors.

    Args:
        max_text_bytes: of all texts of a request together.
        max_resume_window_s: longest window that a request may ask for.
        images: takes those of messages; without it, there are none.
        zone: where workers are preferred; empty: nowhere.
    """

    def __init__(
        self,
        policy: Admits,
        models: ModelCards,
        tokenizers: Tokenizes,
        services: Services,
        *,
        max_text_bytes: int,
        max_resume_window_s: int,
        images: ImageIntake | None = None,
        zone: str = "",
    ) -> None:
        self._policy = policy
        self._models = models
        self._tokenizers = tokenizers
        self._services = services
        self._answers = services.answers
        self._constraints = Constraints(tokenizers)
        self._max_text_bytes = max_text_bytes
        self._max_resume_window_s = max_resume_window_s
        self._images = images
        self._zone = zone

    async def admit(self, scope: str, context: CallContext) -> Caller:
        """Let a call pass, before its message is received.

        Raises:
            Unauthenticated: no credential, or an unknown one.
            PermissionDenied: policy says no.
            ResourceExhausted: too many calls wait for policy, or a limit of the caller is used up.
            Unavailable: policy, or its store, does not answer.
        """
        return await self._policy.admit(scope, context)

    @asynccontextmanager
    async def chat(
        self, context: CallContext, caller: Caller, request: inference_pb2.ChatRequest
    ) -> AsyncIterator[Generation]:
        """The generation of a conversation's next message, submitted."""
        async with self._generation("Chat", context, caller, model=request.model) as (call, generation):
            card, adapter = await self._check(call, request)
            validation.check_messages(request.messages, max_text_bytes=self._max_text_bytes)
            generation.note_prompt(chat_text(request.messages))
            size = schema_bytes(request.tools)
            use = await off_loop_if_large(size, lambda: tool_use_of(request), above=LARGE_SCHEMA)
            held = await self._constraints.checked(request.params, card)
            params, unenforced = held.params, [*held.unenforced, *use.unenforced]
            asked = validation.prompt_form(request)
            chat = await self._rendered(request.messages, card, asked, use.tools)
            has_constraint = params.HasField("constraint")
            if use.functions:
                content = params.constraint if has_constraint else None
                strict = {tool.name for tool in use.tools if tool.strict}
                held = await self._constraints.with_tool_calls(
                    params, use.constraint(chat, content), card, strict=strict
                )
                params = held.params
                unenforced += held.unenforced
            else:
                params = await self._constraints.within(params, chat, card)
            generation.unenforced = named(unenforced)
            form = format_of(
                use,
                chat,
                is_constrained=params.constraint.HasField("tool_calls"),
                is_all_content=not use.functions
                and has_constraint
                and not params.constraint.HasField("syntax"),
                call_id_prefix=new_call_id_prefix(),
            )
            prompt = Prompt(chat.tokens.ids, "messages", chat.images)
            await self._submit(generation, call, card, prompt, request, params, form, adapter=adapter)
            yield generation

    @asynccontextmanager
    async def generate(
        self, context: CallContext, caller: Caller, request: inference_pb2.GenerateRequest
    ) -> AsyncIterator[Generation]:
        """The generation that continues a prompt, submitted."""
        async with self._generation("Generate", context, caller, model=request.model) as (call, generation):
            card, adapter = await self._check(call, request)
            text = validation.prompt_of(request, max_text_bytes=self._max_text_bytes)
            held = await self._constraints.checked(request.params, card)
            params, generation.unenforced = held.params, named(held.unenforced)
            generation.note_prompt(text if isinstance(text, str) else " ".join(map(str, text)))
            if request.HasField("suffix"):
                prompt = await self._gap(text, request.suffix, card)
            elif request.HasField("parts"):
                prompt = await self._of_parts(request.parts, card)
            else:
                prompt = await self._prompt(text, request.WhichOneof("prompt") or "prompt", card)
            await self._submit(generation, call, card, prompt, request, params, adapter=adapter)
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
            card: as `route` gave it. The texts have been checked.
        """
        async with self._generation(method, context, caller, model=card.name) as (call, generation):
            prompt = Prompt(
                [token for text in texts.token_ids for token in text], texts.field, text=texts.text
            )
            generation.note_prompt(prompt.text or " ".join(map(str, prompt.token_ids)))
            job = scheduler_pb2.InferenceRequest(
                request_id=call.request_id,
                tenant=caller.tenant,
                model=card.name,
                prompt_token_ids=prompt.token_ids,
                # One more token than there are would not fit where they just do.
                params=generation_pb2.GenerationParams(max_tokens=1),
                priority=caller.capped(priority),
                epoch=1,
                worker_pools=caller.worker_pools,
                zone=self._zone,
                model_digest=card.digest,
                embedding=scheduler_pb2.EmbeddingTask(text_tokens=map(len, texts.token_ids)),
            )
            job.attempt_id = call.new_attempt_id(job)
            note_job(call.span, method, job, asked_priority=priority)
            await self._reserve(generation, caller, job, prompt, card)
            await generation.submit(card, job, prompt_field=prompt.field)
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
        await self._services.canceller.cancel(caller.tenant, request_id)

    async def describe(self, caller: Caller, name: str) -> tokenizer_pb2.TokenizerDescribed:
        """Describe a tokenizer to programs that tokenize for themselves.

        Raises:
            PermissionDenied: the caller may not use the model.
        """
        card, _ = await self._card(caller, name)
        return await self._tokenizers.describe(card.digest)

    async def tokenize(
        self, caller: Caller, request: inference_pb2.TokenizeRequest, *, is_bare: bool = False
    ) -> inference_pb2.TokenizeResponse:
        """Token ids of a text or a conversation, as a generation would use them.

        Args:
            is_bare: of a text: without BOS.

        Raises:
            InvalidArgument: the prompt cannot be rendered or tokenized, or cannot fit into the context.
            PermissionDenied: the caller may not use the model.
        """
        kind = request.WhichOneof("prompt")
        if kind is None:
            raise InvalidArgument("one of text and conversation is needed", field="prompt")
        card, _ = await self._card(caller, request.model)
        if kind == "text":
            validation.check_text(request.text, max_text_bytes=self._max_text_bytes, field="text")
            ids = await self._tokenizers.tokenize(
                card.digest, request.text, card.context_length, field="text", is_bare=is_bare
            )
        else:
            ids = await self._conversation(request.conversation, card, card.context_length)
        return inference_pb2.TokenizeResponse(token_ids=ids, context_length=card.context_length)

    async def rendered(self, caller: Caller, model: str, conversation: inference_pb2.Conversation) -> str:
        """The text of a conversation's prompt, without its images. It may be longer than the context.

        Raises:
            InvalidArgument: the prompt cannot be rendered.
            PermissionDenied: the caller may not use the model.
        """
        card, _ = await self._card(caller, model)
        ids = await self._conversation(conversation, card, 0)
        return await self._tokenizers.detokenize(card.digest, without_placeholders(ids))

    async def _conversation(
        self, conversation: inference_pb2.Conversation, card: model_pb2.ModelCard, most: int
    ) -> Sequence[int]:
        """Token ids of a conversation, `most` of them at most; 0: any number."""
        validation.check_messages(conversation.messages, max_text_bytes=self._max_text_bytes)
        tools = conversation.tools
        await off_loop_if_large(schema_bytes(tools), lambda: functions_of(tools), above=LARGE_SCHEMA)
        asked = validation.prompt_form(conversation)
        made = await self._rendered(conversation.messages, card, asked, tools, context_length=most)
        return made.tokens.ids

    async def detokenize(
        self, caller: Caller, request: inference_pb2.DetokenizeRequest
    ) -> inference_pb2.DetokenizeResponse:
        """The text of token ids.

        Raises:
            InvalidArgument: there are more than the context holds, or one is not in the vocabulary.
            PermissionDenied: the caller may not use the model.
        """
        card, _ = await self._card(caller, request.model)
        checks.check_count(request.token_ids, card.context_length, "token_ids")
        generation_limits.check_token_ids(request.token_ids, card.vocabulary_size, field="token_ids")
        text = await self._tokenizers.detokenize(card.digest, request.token_ids)
        return inference_pb2.DetokenizeResponse(text=text)

    async def _rendered(
        self,
        messages: Sequence[inference_pb2.ChatMessage],
        card: model_pb2.ModelCard,
        asked: tokenizer_pb2.RenderChat,
        tools: Sequence[inference_pb2.Tool] = (),
        *,
        context_length: int | None = None,
        name: str = OF_MESSAGES,
    ) -> tokenizer_pb2.RenderedChat:
        """The prompt of messages. Their images and sounds are stored by then.

        Args:
            context_length: most of its tokens, 0: any number; None: as many as the model takes.
            name: a part's name in errors.
        """
        images = await self._images.of(messages, card, name=name) if self._images is not None else []
        return await self._tokenizers.render_chat(
            card.digest,
            messages,
            card.context_length if context_length is None else context_length,
            tools=tools,
            images=images,
            projector=card.projector if images else "",
            asked=asked,
        )

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
            RequestSpan(self._services.tracer, method, context.traceparent, at_s=at_s) as span,
        ):
            logs.bind_request(**logs.of_request(request_id, caller.tenant))
            note_caller(span, caller.tenant, request_id)
            call = Call(method, without_keys(model), request_id, caller, span, context)
            async with Generation(call, self._services) as generation:
                yield call, generation

    async def _check(
        self, call: Call, request: inference_pb2.ChatRequest | inference_pb2.GenerateRequest
    ) -> tuple[model_pb2.ModelCard, model_pb2.AdapterCard | None]:
        validation.check_priority(request.priority, announced=call.context.announced_priority)
        validation.check_resume_window(request.resume_window_s, most_s=self._max_resume_window_s)
        card, adapter = await self._routed(call.caller, request.model, request.adapter)
        check_role(card, model_pb2.MODEL_ROLE_GENERATION)
        # Clients name what they know of another model. An answer ends with the context in any case.
        if request.params.max_tokens > card.context_length:
            request.params.max_tokens = card.context_length
        generation_limits.check_params(
            request.params, context_length=card.context_length, vocabulary_size=card.vocabulary_size
        )
        return card, adapter

    async def route(self, caller: Caller, name: str) -> model_pb2.ModelCard:
        """The card of the model that a name means, if the caller may use it; of a request that is counted.

        Raises:
            InvalidArgument: the name means an adapter.
        """
        card, adapter = await self._routed(caller, name)
        if adapter is not None:
            raise InvalidArgument("adapters are for models that generate", field="model")
        return card

    async def _routed(
        self, caller: Caller, name: str, adapter: str = ""
    ) -> tuple[model_pb2.ModelCard, model_pb2.AdapterCard | None]:
        """As `_card`, of a request that is counted."""
        card, chosen = await self._card(caller, name, adapter)
        by_name = chosen.name if chosen is not None else ""
        is_split = self._models.is_split(name)
        by = self._services.metrics.count_route(name, card, by_name, is_split=is_split)
        # What another name stands for may change. A model's own is in the audit trail.
        say = log.debug if by == "name" else log.info
        say("a request is routed", asked=without_keys(name), model=card.name, adapter=by_name, by=by)
        return card, chosen

    async def _card(
        self, caller: Caller, name: str, adapter: str = ""
    ) -> tuple[model_pb2.ModelCard, model_pb2.AdapterCard | None]:
        """The cards of the model and of the adapter that a name means, if the caller may use them.

        Args:
            adapter: that is asked for beside the name.
        """
        if not name:
            name = await self._models.meant("", model_pb2.MODEL_ROLE_GENERATION, caller)
        if self._models.is_split(name):
            await self._models.settled()
            name = self._models.split_for(name, caller)
        model, named = await self._models.choose(name)
        checks.check_model_name(model)
        if adapter:
            adapters.check_name(adapter, "adapter")
            if named not in ("", adapter):
                message = f"the model's name asks for the adapter {named!r}, and adapter for {adapter!r}"
                raise InvalidArgument(message, field="adapter")
        caller.check_model(model, named or adapter)
        card = await self._models.card(model)
        chosen = named or adapter
        return card, self._models.adapter(model, chosen) if chosen else None

    async def _prompt(self, prompt: str | Sequence[int], field: str, card: model_pb2.ModelCard) -> Prompt:
        if isinstance(prompt, str):
            ids = await self._tokenizers.tokenize(card.digest, prompt, card.context_length, field=field)
            return Prompt(ids, field)
        validation.check_prompt_length(len(prompt), card, field=field)
        generation_limits.check_token_ids(prompt, card.vocabulary_size, field="token_ids.ids")
        return Prompt(prompt, field)

    async def _of_parts(self, given: inference_pb2.PromptParts, card: model_pb2.ModelCard) -> Prompt:
        """The prompt of texts, images and sounds. The latter are stored by then."""
        messages = [inference_pb2.ChatMessage(role="user", parts=given.parts)]
        asked = tokenizer_pb2.RenderChat(is_plain=True)
        made = await self._rendered(messages, card, asked, name="parts.parts[{1}]")
        return Prompt(made.tokens.ids, "parts", made.images)

    async def _gap(self, prefix: str | Sequence[int], suffix: str, card: model_pb2.ModelCard) -> Prompt:
        """The prompt of an answer that fills the gap between two texts.

        Raises:
            InvalidArgument: the prefix is no text, or the vocabulary has no tokens for it.
        """
        if not isinstance(prefix, str):
            raise InvalidArgument("suffix: the prompt has to be a text", field="suffix")
        size = len(prefix.encode()) + len(suffix.encode())
        validation.check_text_size(size, self._max_text_bytes, "suffix")
        ids = await self._tokenizers.tokenize_gap(card.digest, prefix, suffix, card.context_length)
        return Prompt(ids, "suffix")

    async def _submit(
        self,
        generation: Generation,
        call: Call,
        card: model_pb2.ModelCard,
        prompt: Prompt,
        request: inference_pb2.ChatRequest | inference_pb2.GenerateRequest,
        params: generation_pb2.GenerationParams,
        answer_format: generation_pb2.AnswerFormat | None = None,
        *,
        adapter: model_pb2.AdapterCard | None,
    ) -> None:
        n_tokens = len(prompt.token_ids)
        validation.check_prompt_length(n_tokens, card, field=prompt.field)
        check_scores(params, prompt_tokens=n_tokens, has_images=bool(prompt.images))
        params = await in_tokens(params, card, self._tokenizers)
        job = scheduler_pb2.InferenceRequest(
            request_id=call.request_id,
            tenant=call.caller.tenant,
            model=card.name,
            prompt_token_ids=prompt.token_ids,
            params=resolve(
                params,
                prompt_tokens=n_tokens,
                context_length=card.context_length,
                choice=call.context.choice,
                deterministic=call.caller.is_deterministic,
            ),
            priority=call.caller.capped(request.priority),
            epoch=1,
            resume_window_s=request.resume_window_s,
            attempt_id=call.new_attempt_id(request),
            cache_scope=call.caller.cache_scope,
            same_prompt_as=call.context.same_prompt_as,
            answer_format=answer_format,
            worker_pools=call.caller.worker_pools,
            zone=self._zone,
            model_digest=card.digest,
            images=prompt.images,
            adapter=adapter.name if adapter is not None else "",
            adapter_digest=adapter.digest if adapter is not None else "",
        )
        digest = card.digest + job.adapter_digest
        generation.serves(adapters.joined(job.model, job.adapter), digest=digest, prompt_tokens=n_tokens)
        note_job(call.span, call.method, job, asked_priority=request.priority)
        await self._reserve(generation, call.caller, job, prompt, card)
        query = self._query(job, call, card, request)
        cached = await self._answers.find(query) if self._answers and query else None
        if cached is not None:
            await generation.answer(card, job, cached)
        else:
            await generation.submit(card, job, prompt_field=prompt.field, query=query)

    async def _reserve(
        self,
        generation: Generation,
        caller: Caller,
        job: scheduler_pb2.InferenceRequest,
        prompt: Prompt,
        card: model_pb2.ModelCard,
    ) -> None:
        """Have policy let a request be queued, with the text of its prompt where that is wanted.

        Where it has nothing to decide it is not asked: that would only delay the first token.
        """
        if caller.skips_reserve:
            return
        text = await self._text_of(prompt, card) if caller.wants_text else None
        try:
            await generation.reserve(job, text=text)
        except Aborted as error:
            if text is not None or error.reason != TEXT_NEEDED:
                raise
            # Guardrails came into force after the call was admitted.
            await generation.reserve(job, text=await self._text_of(prompt, card))

    async def _text_of(self, prompt: Prompt, card: model_pb2.ModelCard) -> str:
        """The prompt as the model gets it, whichever way it was given; without its images."""
        if prompt.text is not None:
            return prompt.text
        ids = without_placeholders(prompt.token_ids) if prompt.images else prompt.token_ids
        return await self._tokenizers.detokenize(card.digest, ids)

    def _query(
        self,
        job: scheduler_pb2.InferenceRequest,
        call: Call,
        card: model_pb2.ModelCard,
        request: inference_pb2.ChatRequest | inference_pb2.GenerateRequest,
    ) -> Query | None:
        """Return what the answer cache is asked; None where it is not to be used, or cannot be."""
        if self._answers is None or call.caller.skips_answer_cache or request.skip_answer_cache:
            return None
        if request.params.HasField("prompt_logprobs"):  # they are no part of what is kept
            return None
        digest = card.digest + (card.projector if job.images else "")
        return query_of(job, request.params, model_digest=digest)


def chat_text(messages: Sequence[inference_pb2.ChatMessage]) -> str:
    """All texts of a conversation in order, a line each."""
    return "\n".join(text for message in messages for text in validation.texts_of(message) if text)


def _check_request_id(request_id: str) -> None:
    if not subjects.is_safe_token(request_id):
        raise InvalidArgument("a request id is 1 to 64 of A-Z a-z 0-9 _ -", field="request_id")
