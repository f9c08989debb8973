"""POST /v1/tokenize and /v1/detokenize."""

from __future__ import annotations

from collections.abc import Sequence

from inferflux.common.contract.errors import InferFluxError
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.http.openai import tokens
from inferflux.gateway.http.openai.text_bodies import DetokenizeBody, TokenizeBody
from inferflux.gateway.request.token_calls import TokenCalls

from .reading import BodyReader


class Tokenize:
    """Token ids of a text or a conversation, as a completion or a chat would use them."""

    def __init__(self, calls: TokenCalls, bodies: BodyReader) -> None:
        self._calls = calls
        self._bodies = bodies

    async def __call__(self, request: Request) -> None:
        body, asked = await self._bodies.read(request.caller, request.body, TokenizeBody, tokens.to_tokenize)
        try:
            answer = await self._calls.tokenize(request.caller, asked)
        except InferFluxError as error:
            raise in_words_of(error, tokens.tokenize_names(body)) from None
        await request.exchange.answer_json(tokens.of_tokenize(answer))


class Detokenize:
    """The text of token ids.

    Args:
        names: what the text is called in the answer: in llama.cpp's server otherwise than in ours.
    """

    def __init__(self, calls: TokenCalls, bodies: BodyReader, *, names: Sequence[str] = ("prompt",)) -> None:
        self._calls = calls
        self._bodies = bodies
        self._names = names

    async def __call__(self, request: Request) -> None:
        _, asked = await self._bodies.read(request.caller, request.body, DetokenizeBody, tokens.to_detokenize)
        try:
            answer = await self._calls.detokenize(request.caller, asked)
        except InferFluxError as error:
            raise in_words_of(error, tokens.DETOKENIZE_NAMES) from None
        await request.exchange.answer_json(dict.fromkeys(self._names, answer.text))
