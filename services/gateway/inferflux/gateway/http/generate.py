"""POST /generate: a prompt in, token chunks out."""

from __future__ import annotations

from functools import partial

from inferflux.gateway.caller import Caller

from .answering import Answering, Asked
from .endpoint import Request
from .openai import generate
from .openai.bodies import GenerateBody
from .reading import BodyReader


class Generate:
    """Continues a prompt, or answers a conversation. It streams unless `stream` is false."""

    def __init__(self, answering: Answering, bodies: BodyReader) -> None:
        self._answering = answering
        self._bodies = bodies

    async def __call__(self, request: Request) -> None:
        body, asked = await read(request.caller, request.body, self._bodies)
        if body.stream is False:
            await self._answering.whole(request, asked, generate.ChunkAnswer())
        else:
            await self._answering.stream(request, asked, generate.ChunkStream())


async def read(caller: Caller, data: bytes, bodies: BodyReader) -> tuple[GenerateBody, Asked]:
    """What a body, or a message of a websocket, asks for.

    Raises:
        InvalidArgument: it cannot be served.
    """
    body, prompt = await bodies.read(caller, data, GenerateBody, generate.to_request)
    return body, Asked([prompt], 1, partial(generate.field_names, body))
