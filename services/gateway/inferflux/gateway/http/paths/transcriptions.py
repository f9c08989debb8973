"""POST /v1/audio/transcriptions."""

from __future__ import annotations

from contextlib import aclosing

from pydantic_core import to_json

from inferflux.common.contract.errors import InferFluxError
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.http.openai.multipart import parse_form
from inferflux.gateway.http.openai.transcriptions import (
    FIELD_NAMES,
    Transcription,
    TranscriptionBody,
    fields_of,
    to_request,
)

from .answering import Asked, GenerationPath


class Transcriptions(GenerationPath):
    """The words of a sound, by a model that takes sounds."""

    async def __call__(self, request: Request) -> None:
        exchange = request.exchange
        data, fields = fields_of(parse_form(request.body, exchange.header("content-type")))
        body, prompt = await self._bodies.read(
            request.caller, to_json(fields), TranscriptionBody, lambda body: to_request(body, data)
        )
        asked = Asked([prompt], 1, lambda: FIELD_NAMES)
        made = Transcription()
        try:
            async with (
                exchange.cancelled_when_gone(),
                aclosing(self._answering.chunks(exchange.context, request.caller, asked)) as chunks,
            ):
                async for index, chunk, delta in chunks:
                    made.add(index, chunk, delta)
        except InferFluxError as error:
            raise in_words_of(error, FIELD_NAMES) from None
        if body.response_format == "text":
            await exchange.answer(200, f"{made.text.strip()}\n".encode(), "text/plain; charset=utf-8")
        else:
            await exchange.answer_json(made.to_json())
