"""Calls that a tokenizer alone answers: nothing is queued for them."""

from __future__ import annotations

from collections.abc import Sequence

from inferflux.common.contract import checks
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests import generation_limits
from inferflux.common.contract.requests.images import without_placeholders
from inferflux.common.process.tasks import LARGE_SCHEMA, off_loop_if_large
from inferflux.gateway.policy.caller import Caller
from inferflux.v1 import inference_pb2, model_pb2, tokenizer_pb2

from . import validation
from .prompts import Prompts, Tokenizes
from .routing import Routing
from .tools import functions_of, schema_bytes


class TokenCalls:
    """Every method raises InferFluxErrors.

    Raises:
        PermissionDenied: the caller may not use the model.
    """

    def __init__(
        self, routing: Routing, prompts: Prompts, tokenizers: Tokenizes, *, max_text_bytes: int
    ) -> None:
        self._routing = routing
        self._prompts = prompts
        self._tokenizers = tokenizers
        self._max_text_bytes = max_text_bytes

    async def describe(self, caller: Caller, name: str) -> tokenizer_pb2.TokenizerDescribed:
        """Describe a tokenizer to programs that tokenize for themselves."""
        card, _ = await self._routing.cards(caller, name)
        return await self._tokenizers.describe(card.digest)

    async def tokenize(
        self, caller: Caller, request: inference_pb2.TokenizeRequest, *, is_bare: bool = False
    ) -> inference_pb2.TokenizeResponse:
        """Token ids of a text or a conversation, as a generation would use them.

        Args:
            is_bare: of a text: without BOS.

        Raises:
            InvalidArgument: the prompt cannot be rendered or tokenized, or cannot fit into the context.
        """
        kind = request.WhichOneof("prompt")
        if kind is None:
            raise InvalidArgument("one of text and conversation is needed", field="prompt")
        card, _ = await self._routing.cards(caller, request.model)
        if kind == "text":
            validation.check_text(request.text, max_text_bytes=self._max_text_bytes, field="text")
            ids = await self._tokenizers.tokenize(
                card.digest, request.text, card.context_length, field="text", is_bare=is_bare
            )
        else:
            ids = await self._conversation(request.conversation, card, card.context_length)
        return inference_pb2.TokenizeResponse(token_ids=ids, context_length=card.context_length)

    async def rendered(self, caller: Caller, model: str, conversation: inference_pb2.Conversation) -> str:
        """The text of a conversation's prompt, without its images. It may be longer than the context.

        Raises:
            InvalidArgument: the prompt cannot be rendered.
        """
        card, _ = await self._routing.cards(caller, model)
        ids = await self._conversation(conversation, card, 0)
        return await self._tokenizers.detokenize(card.digest, without_placeholders(ids))

    async def _conversation(
        self, conversation: inference_pb2.Conversation, card: model_pb2.ModelCard, most: int
    ) -> Sequence[int]:
        """Token ids of a conversation, `most` of them at most; 0: any number."""
        validation.check_messages(conversation.messages, max_text_bytes=self._max_text_bytes)
        tools = conversation.tools
        await off_loop_if_large(schema_bytes(tools), lambda: functions_of(tools), above=LARGE_SCHEMA)
        asked = validation.prompt_form(conversation)
        made = await self._prompts.rendered(conversation.messages, card, asked, tools, context_length=most)
        return made.tokens.ids

    async def detokenize(
        self, caller: Caller, request: inference_pb2.DetokenizeRequest
    ) -> inference_pb2.DetokenizeResponse:
        """The text of token ids.

        Raises:
            InvalidArgument: there are more than the context holds, or one is not in the vocabulary.
        """
        card, _ = await self._routing.cards(caller, request.model)
        checks.check_count(request.token_ids, card.context_length, "token_ids")
        generation_limits.check_token_ids(request.token_ids, card.vocabulary_size, field="token_ids")
        text = await self._tokenizers.detokenize(card.digest, request.token_ids)
        return inference_pb2.DetokenizeResponse(text=text)
