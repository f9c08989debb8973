"""POST /generate: a prompt in, token chunks out."""

from __future__ import annotations

from functools import partial

from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.http.openai import generate
from inferflux.gateway.http.openai.bodies import GenerateBody

from .answering import Answering, Asked
from .reading import BodyReader


class Generate:
    """Continues a prompt, or answers a conversation. It streams unless `stream` is false."""

    def __init__(self, answering: Answering, bodies: BodyReader) -> None:
        self._answering = answering
        self._bodies = bodies

    async def __call__(self, request: Request) -> None:
        body, prompt = await self._bodies.read(
            request.caller, request.body, GenerateBody, generate.to_request
        )
        asked = Asked([prompt], 1, partial(generate.field_names, body))
        if body.stream is False:
            await self._answering.whole(request, asked, generate.ChunkAnswer())
        else:
            await self._answering.stream(request, asked, generate.ChunkStream())
