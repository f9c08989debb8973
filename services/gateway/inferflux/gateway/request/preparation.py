"""From an admitted call to a request that is ready to be answered: checked, rendered, tokenized."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from inferflux.common.contract.models.model_roles import check_role
from inferflux.common.contract.requests import adapters, generation_limits
from inferflux.common.process.tasks import LARGE_SCHEMA, off_loop_if_large
from inferflux.common.text.constraints.schema import named
from inferflux.gateway.answers.cache import Query, query_of
from inferflux.v1 import generation_pb2, inference_pb2, model_pb2, scheduler_pb2

from . import validation
from .call import Call, note_job
from .chat_reader import format_of
from .constraints import Constraints
from .prompts import Prompt, Prompts, Tokenizes
from .routing import Cards, Routing
from .tools import schema_bytes, tool_use_of
from .words import check_scores, in_tokens

# llama.cpp's own, and what generation.proto promises.
DEFAULT_SAMPLING = generation_pb2.SamplingParams(
    temperature=0.8,
    top_k=40,
    top_p=0.95,
    min_p=0.05,
    repeat_penalty=1.0,
    frequency_penalty=0.0,
    presence_penalty=0.0,
    penalty_last_n=64,
    typical_p=1.0,
    xtc_probability=0.0,
    xtc_threshold=0.1,
    dry_multiplier=0.0,
    dry_base=1.75,
    dry_allowed_length=2,
    dry_penalty_last_n=64,
    dry_sequence_breakers=generation_pb2.SequenceBreakers(texts=["\n", ":", '"', "*"]),
    dynatemp_range=0.0,
    dynatemp_exponent=1.0,
    top_n_sigma=0.0,
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that was checked, rendered and tokenized: its answer needs nothing else of the call.

    Attributes:
        job: all that a worker needs.
        prompt_field: that the prompt came from, for errors.
        text: the prompt's text, which policy may want.
        query: to the answer cache; None where it is not to be used, or cannot be.
        unenforced: keywords of its schemas that the check of the complete answer alone knows.
    """

    card: model_pb2.ModelCard
    job: scheduler_pb2.InferenceRequest
    prompt_field: str
    text: Callable[[], Awaitable[str]]
    query: Query | None = None
    unenforced: str = ""

    @property
    def served_as(self) -> str:
        """The model that answers, with its adapter if there is one."""
        return adapters.joined(self.job.model, self.job.adapter)

    @property
    def digest(self) -> str:
        """The digest of the model's file, and of the adapter's."""
        return self.card.digest + self.job.adapter_digest


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


class Preparation:
    """Every method raises InferFluxErrors.

    Args:
        max_text_bytes: of all texts of a request together.
        max_resume_window_s: longest window that a request may ask for.
        zone: where workers are preferred; empty: nowhere.
        has_answer_cache: whether answers are cached at all.
    """

    def __init__(
        self,
        routing: Routing,
        prompts: Prompts,
        tokenizers: Tokenizes,
        *,
        max_text_bytes: int,
        max_resume_window_s: int,
        zone: str,
        has_answer_cache: bool,
    ) -> None:
        self._routing = routing
        self._prompts = prompts
        self._tokenizers = tokenizers
        self._constraints = Constraints(tokenizers)
        self._max_text_bytes = max_text_bytes
        self._max_resume_window_s = max_resume_window_s
        self._zone = zone
        self._has_answer_cache = has_answer_cache

    async def chat(self, call: Call, request: inference_pb2.ChatRequest) -> Prepared:
        """A conversation whose next message is wanted."""
        card, adapter = await self._check(call, request)
        validation.check_messages(request.messages, max_text_bytes=self._max_text_bytes)
        call.prompt.add(chat_text(request.messages))
        size = schema_bytes(request.tools)
        use = await off_loop_if_large(size, lambda: tool_use_of(request), above=LARGE_SCHEMA)
        held = await self._constraints.checked(request.params, card)
        params, unenforced = held.params, [*held.unenforced, *use.unenforced]
        asked = validation.prompt_form(request)
        chat = await self._prompts.rendered(request.messages, card, asked, use.tools)
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
        form = format_of(
            use,
            chat,
            is_constrained=params.constraint.HasField("tool_calls"),
            is_all_content=not use.functions and has_constraint and not params.constraint.HasField("syntax"),
            call_id_prefix=_new_call_id_prefix(),
        )
        prompt = Prompt(chat.tokens.ids, "messages", chat.images)
        return await self._prepared(call, (card, adapter), prompt, request, params, form, named(unenforced))

    async def generate(self, call: Call, request: inference_pb2.GenerateRequest) -> Prepared:
        """A prompt to be continued."""
        card, adapter = await self._check(call, request)
        text = validation.prompt_of(request, max_text_bytes=self._max_text_bytes)
        held = await self._constraints.checked(request.params, card)
        call.prompt.add(text if isinstance(text, str) else " ".join(map(str, text)))
        prompt = await self._prompts.given(request, text, card)
        unenforced = named(held.unenforced)
        return await self._prepared(call, (card, adapter), prompt, request, held.params, None, unenforced)

    def texts(self, call: Call, card: model_pb2.ModelCard, texts: Texts, *, priority: int) -> Prepared:
        """Texts to be made into vectors. They have been checked.

        Args:
            card: as `Routing` gave it.
        """
        token_ids = [token for text in texts.token_ids for token in text]
        prompt = Prompt(token_ids, texts.field, text=texts.text)
        call.prompt.add(prompt.text or " ".join(map(str, token_ids)))
        job = scheduler_pb2.InferenceRequest(
            request_id=call.request_id,
            tenant=call.caller.tenant,
            model=card.name,
            prompt_token_ids=token_ids,
            # One more token than there are would not fit where they just do.
            params=generation_pb2.GenerationParams(max_tokens=1),
            priority=call.caller.capped(priority),
            epoch=1,
            worker_pools=call.caller.worker_pools,
            zone=self._zone,
            model_digest=card.digest,
            embedding=scheduler_pb2.EmbeddingTask(text_tokens=map(len, texts.token_ids)),
        )
        job.attempt_id = call.new_attempt_id(job)
        note_job(call.span, call.method, job, asked_priority=priority)
        return Prepared(card, job, prompt.field, partial(self._prompts.text_of, prompt, card))

    async def _check(
        self, call: Call, request: inference_pb2.ChatRequest | inference_pb2.GenerateRequest
    ) -> Cards:
        validation.check_priority(request.priority, announced=call.context.announced_priority)
        validation.check_resume_window(request.resume_window_s, most_s=self._max_resume_window_s)
        card, adapter = await self._routing.counted(call.caller, request.model, request.adapter)
        check_role(card, model_pb2.MODEL_ROLE_GENERATION)
        # Clients name what they know of another model. An answer ends with the context in any case.
        if request.params.max_tokens > card.context_length:
            request.params.max_tokens = card.context_length
        generation_limits.check_params(
            request.params, context_length=card.context_length, vocabulary_size=card.vocabulary_size
        )
        return card, adapter

    async def _prepared(
        self,
        call: Call,
        cards: Cards,
        prompt: Prompt,
        request: inference_pb2.ChatRequest | inference_pb2.GenerateRequest,
        params: generation_pb2.GenerationParams,
        answer_format: generation_pb2.AnswerFormat | None,
        unenforced: str,
    ) -> Prepared:
        card, adapter = cards
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
        note_job(call.span, call.method, job, asked_priority=request.priority)
        text, query = partial(self._prompts.text_of, prompt, card), self._query(job, call, card, request)
        return Prepared(card, job, prompt.field, text, query, unenforced)

    def _query(
        self,
        job: scheduler_pb2.InferenceRequest,
        call: Call,
        card: model_pb2.ModelCard,
        request: inference_pb2.ChatRequest | inference_pb2.GenerateRequest,
    ) -> Query | None:
        """Return what the answer cache is asked; None where it is not to be used, or cannot be."""
        if not self._has_answer_cache or call.caller.skips_answer_cache or request.skip_answer_cache:
            return None
        if request.params.HasField("prompt_logprobs"):  # they are no part of what is kept
            return None
        digest = card.digest + (card.projector if job.images else "")
        return query_of(job, request.params, model_digest=digest)


def chat_text(messages: Sequence[inference_pb2.ChatMessage]) -> str:
    """All texts of a conversation in order, a line each."""
    return "\n".join(text for message in messages for text in validation.texts_of(message) if text)


def resolve(
    params: generation_pb2.GenerationParams,
    *,
    prompt_tokens: int,
    context_length: int,
    choice: int = 0,
    deterministic: bool = False,
) -> generation_pb2.GenerationParams:
    """Set every optional field, so that a retry is the same request: defaults, a drawn seed, and max_tokens
    cut to what the context has left.

    Args:
        choice: see `CallContext`.
        deterministic: whether a request is that leaves it open; False: its model decides.
    """
    resolved = generation_pb2.GenerationParams()
    resolved.CopyFrom(params)
    resolved.sampling.CopyFrom(DEFAULT_SAMPLING)
    if params.sampling.HasField("dry_sequence_breakers"):  # else they were added to the default ones
        resolved.sampling.ClearField("dry_sequence_breakers")
    resolved.sampling.MergeFrom(params.sampling)
    has_seed = resolved.sampling.HasField("seed")
    seed = resolved.sampling.seed + choice if has_seed else secrets.randbits(63)
    resolved.sampling.seed = seed % 2**64
    for last_n in ("penalty_last_n", "dry_penalty_last_n"):
        if getattr(resolved.sampling, last_n) == -1:
            setattr(resolved.sampling, last_n, context_length)
    if deterministic and not params.HasField("deterministic"):
        resolved.deterministic = True
    left = context_length - prompt_tokens
    resolved.max_tokens = min(params.max_tokens, left) if params.HasField("max_tokens") else left
    return resolved


def _new_call_id_prefix() -> str:
    """What the ids of an answer's tool calls begin with."""
    return f"call_{secrets.token_hex(10)}"
