"""POST /v1/tokenize and /v1/detokenize."""

from __future__ import annotations

from inferflux.common.errors import InferFluxError
from inferflux.gateway.off_loop import off_loop_if_large
from inferflux.gateway.pipeline import Pipeline
from inferflux.v1 import inference_pb2

from .bodies import parse
from .endpoint import Request
from .errors import in_words_of
from .openai import tokens
from .openai.bodies import DetokenizeBody, TokenizeBody


class Tokenize:
    """Token ids of a text or a conversation, as a completion or a chat would use them."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def __call__(self, request: Request) -> None:
        body, asked = await off_loop_if_large(len(request.body), lambda: _read(request.body))
        try:
            answer = await self._pipeline.tokenize(request.caller, asked)
        except InferFluxError as error:
            raise in_words_of(error, tokens.tokenize_names(body)) from None
        await request.exchange.answer_json(tokens.of_tokenize(answer))


def _read(data: bytes) -> tuple[TokenizeBody, inference_pb2.TokenizeRequest]:
    body = parse(TokenizeBody, data)
    return body, tokens.to_tokenize(body)


class Detokenize:
    """The text of token ids."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def __call__(self, request: Request) -> None:
        asked = await off_loop_if_large(
            len(request.body), lambda: tokens.to_detokenize(parse(DetokenizeBody, request.body))
        )
        try:
            answer = await self._pipeline.detokenize(request.caller, asked)
        except InferFluxError as error:
            raise in_words_of(error, tokens.DETOKENIZE_NAMES) from None
        await request.exchange.answer_json({"prompt": answer.text})
