"""Handlers of the paths of llama.cpp's server."""

from __future__ import annotations

import time
from functools import partial

from inferflux.common.contract.errors import InferFluxError, InvalidArgument
from inferflux.common.process.probe import Probe
from inferflux.gateway.http.errors.errors import in_words_of, missing
from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.http.front.exchange import Exchange
from inferflux.gateway.http.openai import tokens
from inferflux.gateway.http.openai.answers import Head, Json
from inferflux.gateway.http.openai.text_bodies import TokenizeBody
from inferflux.gateway.http.paths.answering import Answering, Asked
from inferflux.gateway.http.paths.reading import GENERATION, BodyReader
from inferflux.gateway.models.models import ModelRegistry
from inferflux.gateway.request.token_calls import TokenCalls
from inferflux.v1 import inference_pb2

from .bodies import CompletionBody, ContentBody, InfillBody
from .completion import (
    MEDIA_MARKER,
    CompletionAnswer,
    CompletionStream,
    field_names,
    to_completion,
    to_infill,
)

READY = "/readyz"
METRICS = "/metrics"


class NotSupported(InvalidArgument):
    """llama.cpp's server has it, and this one never will."""

    http_status = 501


class Completion:
    """Continues a prompt, or fills a gap, as one object or as a stream of them."""

    def __init__(self, answering: Answering, bodies: BodyReader, *, is_infill: bool = False) -> None:
        self._answering = answering
        self._bodies = bodies
        self._is_infill = is_infill

    async def __call__(self, request: Request) -> None:
        if self._is_infill:
            gap, prompt = await self._bodies.read(request.caller, request.body, InfillBody, to_infill)
            await self._answer(request, gap, [prompt])
        else:
            body, prompts = await self._bodies.read(
                request.caller, request.body, CompletionBody, to_completion
            )
            await self._answer(request, body, prompts)

    async def _answer(
        self,
        request: Request,
        body: CompletionBody | InfillBody,
        prompts: list[inference_pb2.GenerateRequest],
    ) -> None:
        head = Head(request.request_id, body.model, int(time.time()))
        asked = Asked(prompts, 1, partial(field_names, body), head)
        if body.stream:
            await self._answering.stream(request, asked, CompletionStream(head, body))
        else:
            await self._answering.whole(request, asked, CompletionAnswer(head, body))


class Tokenize:
    """Token ids of a content, with their texts where that is asked for; or as /v1/tokenize."""

    def __init__(self, calls: TokenCalls, bodies: BodyReader) -> None:
        self._calls = calls
        self._bodies = bodies

    async def __call__(self, request: Request) -> None:
        body, asked = await self._bodies.read(request.caller, request.body, ContentBody, _to_tokenize)
        try:
            answer = await self._calls.tokenize(request.caller, asked, is_bare=not _adds_special(body))
        except InferFluxError as error:
            names = tokens.tokenize_names(body) if body.content is None else {"text": "content"}
            raise in_words_of(error, names) from None
        if body.content is None:
            await request.exchange.answer_json(tokens.of_tokenize(answer))
            return
        ids = list(answer.token_ids)
        if body.with_pieces:
            texts = [await self._text(request, body.model, token) for token in ids]
            pieces = [{"id": token, "piece": text} for token, text in zip(ids, texts, strict=True)]
            await request.exchange.answer_json({"tokens": pieces})
        else:
            await request.exchange.answer_json({"tokens": ids})

    async def _text(self, request: Request, model: str, token: int) -> str:
        given = inference_pb2.DetokenizeRequest(model=model, token_ids=[token])
        return (await self._calls.detokenize(request.caller, given)).text


def _adds_special(body: ContentBody) -> bool:
    """llama.cpp's server adds nothing by itself, vLLM's does."""
    return bool(body.add_special) if body.content is not None else body.add_special_tokens is not False


def _to_tokenize(body: ContentBody) -> inference_pb2.TokenizeRequest:
    if body.content is None:
        return tokens.to_tokenize(body)
    return inference_pb2.TokenizeRequest(model=body.model, text=body.content)


class ApplyTemplate:
    """A conversation as the model's template renders it."""

    def __init__(self, calls: TokenCalls, bodies: BodyReader) -> None:
        self._calls = calls
        self._bodies = bodies

    async def __call__(self, request: Request) -> None:
        body, asked = await self._bodies.read(request.caller, request.body, TokenizeBody, _to_render)
        try:
            text = await self._calls.rendered(request.caller, asked.model, asked.conversation)
        except InferFluxError as error:
            raise in_words_of(error, tokens.tokenize_names(body)) from None
        await request.exchange.answer_json({"prompt": text})


class CountChatTokens:
    """How many tokens the prompt of a chat has: POST /v1/chat/completions/input_tokens."""

    def __init__(self, calls: TokenCalls, bodies: BodyReader) -> None:
        self._calls = calls
        self._bodies = bodies

    async def __call__(self, request: Request) -> None:
        body, asked = await self._bodies.read(request.caller, request.body, TokenizeBody, tokens.to_tokenize)
        try:
            answer = await self._calls.tokenize(request.caller, asked)
        except InferFluxError as error:
            raise in_words_of(error, tokens.tokenize_names(body)) from None
        await request.exchange.answer_json({"input_tokens": len(answer.token_ids)})


def _to_render(body: TokenizeBody) -> inference_pb2.TokenizeRequest:
    if body.messages is None:
        raise missing("messages")
    return tokens.to_tokenize(body)


class TokenizerInfo:
    """Describe the tokenizer of the default model, or the only one, as vLLM does: lm-eval asks for it."""

    def __init__(self, calls: TokenCalls, models: ModelRegistry) -> None:
        self._calls = calls
        self._models = models

    async def __call__(self, request: Request) -> None:
        name = await self._models.meant("", GENERATION, request.caller)
        told = await self._calls.describe(request.caller, name)
        await request.exchange.answer_json(
            {
                "bos_token": told.bos_token or None,
                "eos_token": told.eos_token or None,
                "pad_token": None,
                "chat_template": told.chat_template or None,
            }
        )


class Props:
    """Describe the default model, or the only one, as llama.cpp's server does."""

    def __init__(self, calls: TokenCalls, models: ModelRegistry) -> None:
        self._calls = calls
        self._models = models

    async def __call__(self, request: Request) -> None:
        name = await self._models.meant("", GENERATION, request.caller)
        model, _ = await self._models.named_for(request.caller, name, field="model")
        card = model.card
        told = await self._calls.describe(request.caller, name)
        made: Json = {
            "default_generation_settings": {"n_ctx": card.context_length, "params": {}},
            "total_slots": model.workers,
            "model_alias": card.name,
            "model_path": card.name,
            "modalities": {"vision": card.takes_images, "audio": card.takes_audio},
            "media_marker": MEDIA_MARKER,
            "chat_template": told.chat_template,
            "bos_token": told.bos_token,
            "eos_token": told.eos_token,
            "chat_template_caps": {"supports_tools": card.can_call_tools},
            "build_info": "inferflux",
            "is_sleeping": False,
        }
        await request.exchange.answer_json(made)


class Metrics:
    """The gateway's metrics, as at its metrics port."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    async def __call__(self, request: Request) -> None:
        status, content_type, body = self._probe.answer(METRICS, "")
        await request.exchange.answer(status, body, content_type)


async def refuse_slots(_request: Request) -> None:
    """Raises:
    NotSupported: clients have no slots here.
    """
    message = "slots belong to workers here: ClusterService, inferctl status and /metrics tell what runs"
    raise NotSupported(message, reason="NOT_SUPPORTED")


class Health:
    """Tells whether it can serve, in llama.cpp's words."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    async def __call__(self, exchange: Exchange) -> None:
        status, _, _ = self._probe.answer(READY, "")
        if status == 200:
            await exchange.answer_json(
                {"status": "ok", "role": self._probe.role, "reason": self._probe.degraded}
            )
        else:
            said = {"code": status, "message": "it cannot serve now", "type": "unavailable_error"}
            await exchange.answer_json({"error": said}, status)
