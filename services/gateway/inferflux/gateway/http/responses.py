"""POST /v1/responses."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from inferflux.gateway.off_loop import off_loop_if_large

from .answering import Answering, Asked
from .bodies import parse
from .endpoint import Request
from .openai import responses
from .openai.bodies import ResponsesBody

if TYPE_CHECKING:
    from inferflux.v1 import inference_pb2


class Responses:
    """Answers an input, as one response or as its events. Nothing is stored."""

    def __init__(self, answering: Answering, clock: Callable[[], float] = time.time) -> None:
        self._answering = answering
        self._clock = clock

    async def __call__(self, request: Request) -> None:
        body, prompt = await off_loop_if_large(len(request.body), lambda: _read(request.body))
        asked = Asked([prompt], 1, partial(responses.field_names, body))
        head = responses.ResponseHead(request.request_id, int(self._clock()), body)
        if body.stream:
            await self._answering.stream(request, asked, responses.ResponseStream(head))
        else:
            await self._answering.whole(request, asked, responses.Response(head))


def _read(data: bytes) -> tuple[ResponsesBody, inference_pb2.ChatRequest]:
    body = parse(ResponsesBody, data)
    return body, responses.to_request(body)
