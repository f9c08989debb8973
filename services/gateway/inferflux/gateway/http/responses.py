"""POST /v1/responses."""

from __future__ import annotations

import time
from collections.abc import Callable

from .answering import Answering, Asked
from .bodies import parse
from .endpoint import Request
from .openai import responses
from .openai.bodies import ResponsesBody


class Responses:
    """Answers an input, as one response or as its events. Nothing is stored."""

    def __init__(self, answering: Answering, clock: Callable[[], float] = time.time) -> None:
        self._answering = answering
        self._clock = clock

    async def __call__(self, request: Request) -> None:
        body = parse(ResponsesBody, request.body)
        asked = Asked([responses.to_request(body)], 1, responses.FIELD_NAMES)
        head = responses.ResponseHead(request.request_id, int(self._clock()), body)
        if body.stream:
            await self._answering.stream(request, asked, responses.ResponseStream(head))
        else:
            await self._answering.whole(request, asked, responses.Response(head))
