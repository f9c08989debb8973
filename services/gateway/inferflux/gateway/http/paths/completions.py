"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from inferflux.common.contract.errors import InferFluxError
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.http.openai import completions
from inferflux.gateway.http.openai.answers import Head
from inferflux.gateway.http.openai.bodies import CompletionBody
from inferflux.gateway.http.openai.params import tier_of
from inferflux.gateway.request.token_calls import TokenCalls
from inferflux.v1 import inference_pb2

from .answering import Answering, Asked
from .reading import BodyReader


class Completions:
    """Continues texts or token ids, as one JSON object or as a stream of events."""

    def __init__(
        self,
        tokens: TokenCalls,
        answering: Answering,
        bodies: BodyReader,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tokens = tokens
        self._bodies = bodies
        self._answering = answering
        self._clock = clock

    async def __call__(self, request: Request) -> None:
        body, prompts = await self._bodies.read(
            request.caller, request.body, CompletionBody, completions.to_requests
        )
        n = body.n or 1
        head = Head(f"cmpl-{request.request_id}", body.model, int(self._clock()), tier_of(body))
        asked = Asked(prompts, n, partial(completions.field_names, body), head)
        echoes = await self._echoes(request, prompts) if body.echo else [""] * len(prompts)
        has_logprobs = body.logprobs is not None
        shape = completions.Shape(
            head,
            echoes=echoes,
            n=n,
            has_logprobs=has_logprobs,
            has_scores=has_logprobs and bool(body.echo),
            is_prompt_alone=body.max_tokens == 0,
        )
        if body.stream:
            stream = completions.CompletionStream(shape, body.stream_options)
            await self._answering.stream(request, asked, stream)
        else:
            await self._answering.whole(request, asked, completions.CompletionAnswer(shape))

    async def _echoes(self, request: Request, prompts: Sequence[inference_pb2.GenerateRequest]) -> list[str]:
        """Return what `echo` repeats of each prompt."""
        fields = [f"prompt[{i}]" for i in range(len(prompts))] if len(prompts) > 1 else ["prompt"]
        async with request.exchange.cancelled_when_gone():
            return [await self._text(request, *pair) for pair in zip(prompts, fields, strict=True)]

    async def _text(self, request: Request, prompt: inference_pb2.GenerateRequest, field: str) -> str:
        if prompt.WhichOneof("prompt") != "token_ids":
            return prompt.text
        given = inference_pb2.DetokenizeRequest(model=prompt.model, token_ids=prompt.token_ids.ids)
        try:
            return (await self._tokens.detokenize(request.caller, given)).text
        except InferFluxError as error:
            raise in_words_of(error, {"token_ids": field}) from None
