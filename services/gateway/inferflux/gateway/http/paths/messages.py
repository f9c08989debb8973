"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from inferflux.common.contract.errors import InferFluxError
from inferflux.gateway.http.anthropic.bodies import MessagesBody, PromptBody
from inferflux.gateway.http.anthropic.message import MessageAnswer, MessageStream
from inferflux.gateway.http.anthropic.request import Prompt, to_request
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.request.token_calls import TokenCalls
from inferflux.v1 import inference_pb2

from .answering import Asked, GenerationPath
from .reading import BodyReader

# Types of tools and blocks of a body that only Anthropic serves.
SKIPPED = "x-inferflux-skipped"
_ID = "request-id"


class Messages(GenerationPath):
    """Answers a conversation, as one message or as its events."""

    async def __call__(self, request: Request) -> None:
        body, (prompt, asked) = await self._bodies.read(request.caller, request.body, MessagesBody, _read)
        _say_head(request, prompt)
        work = Asked([asked], 1, prompt.field_names)
        answer = MessageAnswer(request.request_id, body.model)
        if body.stream:
            await self._answering.stream(request, work, MessageStream(answer))
        else:
            await self._answering.whole(request, work, answer)


class CountTokens:
    """How many tokens the prompt of a message has."""

    def __init__(self, tokens: TokenCalls, bodies: BodyReader) -> None:
        self._tokens = tokens
        self._bodies = bodies

    async def __call__(self, request: Request) -> None:
        _, prompt = await self._bodies.read(request.caller, request.body, PromptBody, Prompt)
        _say_head(request, prompt)
        try:
            answer = await self._tokens.tokenize(request.caller, prompt.tokenize_request())
        except InferFluxError as error:
            raise in_words_of(error, {"conversation": "messages", **prompt.field_names()}) from None
        await request.exchange.answer_json({"input_tokens": len(answer.token_ids)})


def _read(body: MessagesBody) -> tuple[Prompt, inference_pb2.ChatRequest]:
    prompt = Prompt(body)
    return prompt, to_request(body, prompt)


def _say_head(request: Request, prompt: Prompt) -> None:
    request.exchange.headers[_ID] = request.request_id
    if prompt.skipped:
        request.exchange.headers[SKIPPED] = ", ".join(prompt.skipped)
