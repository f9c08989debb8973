"""POST /v1/responses."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.http.openai.bodies import ResponsesBody
from inferflux.gateway.http.openai.responses import responses

from .answering import Answering, Asked
from .reading import BodyReader


class Responses:
    """Answers an input, as one response or as its events. Nothing is stored."""

    def __init__(
        self, answering: Answering, bodies: BodyReader, clock: Callable[[], float] = time.time
    ) -> None:
        self._answering = answering
        self._bodies = bodies
        self._clock = clock

    async def __call__(self, request: Request) -> None:
        body, prompt = await self._bodies.read(
            request.caller, request.body, ResponsesBody, responses.to_request
        )
        asked = Asked([prompt], 1, partial(responses.field_names, body))
        head = responses.ResponseHead(request.request_id, int(self._clock()), body)
        if body.stream:
            await self._answering.stream(request, asked, responses.ResponseStream(head))
        else:
            await self._answering.whole(request, asked, responses.Response(head))
