"""Prompts as token ids, whichever way they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests import generation_limits
from inferflux.common.contract.requests.images import without_placeholders
from inferflux.gateway.images.inputs import OF_MESSAGES
from inferflux.gateway.images.intake import ImageIntake
from inferflux.v1 import generation_pb2, inference_pb2, model_pb2, tokenizer_pb2

from . import validation
from .constraints import Compiles
from .words import TokenizesTexts


class Tokenizes(Compiles, TokenizesTexts, Protocol):
    """Renders, tokenizes and tries constraints; `inferflux.gateway.tokenizer.tokenizers.Tokenizers` does."""

    async def render_chat(
        self,
        digest: str,
        messages: Sequence[inference_pb2.ChatMessage],
        context_length: int,
        *,
        tools: Sequence[inference_pb2.Tool] = (),
        images: Sequence[tokenizer_pb2.StoredMedia] = (),
        projector: str = "",
        asked: tokenizer_pb2.RenderChat | None = None,
    ) -> tokenizer_pb2.RenderedChat: ...

    async def describe(self, digest: str) -> tokenizer_pb2.TokenizerDescribed: ...

    async def tokenize(
        self, digest: str, text: str, context_length: int, *, field: str, is_bare: bool = False
    ) -> Sequence[int]: ...

    async def tokenize_gap(
        self, digest: str, prefix: str, suffix: str, context_length: int
    ) -> Sequence[int]: ...

    async def detokenize(self, digest: str, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, the field they came from, and the images that some of them stand for.

    Attributes:
        text: of these tokens, where detokenizing them does not give it.
    """

    token_ids: Sequence[int]
    field: str
    images: Sequence[generation_pb2.PromptImage] = ()
    text: str | None = None


class Prompts:
    """Makes prompts. Every method raises InferFluxErrors that name the field.

    Args:
        max_text_bytes: of all texts of a request together.
        images: takes those of messages; without it, there are none.
    """

    def __init__(
        self, tokenizers: Tokenizes, *, max_text_bytes: int, images: ImageIntake | None = None
    ) -> None:
        self._tokenizers = tokenizers
        self._max_text_bytes = max_text_bytes
        self._images = images

    async def rendered(
        self,
        messages: Sequence[inference_pb2.ChatMessage],
        card: model_pb2.ModelCard,
        asked: tokenizer_pb2.RenderChat,
        tools: Sequence[inference_pb2.Tool] = (),
        *,
        context_length: int | None = None,
        name: str = OF_MESSAGES,
    ) -> tokenizer_pb2.RenderedChat:
        """The prompt of messages. Their images and sounds are stored by then.

        Args:
            context_length: most of its tokens, 0: any number; None: as many as the model takes.
            name: a part's name in errors.
        """
        images = await self._images.of(messages, card, name=name) if self._images is not None else []
        return await self._tokenizers.render_chat(
            card.digest,
            messages,
            card.context_length if context_length is None else context_length,
            tools=tools,
            images=images,
            projector=card.projector if images else "",
            asked=asked,
        )

    async def given(
        self, request: inference_pb2.GenerateRequest, text: str | Sequence[int], card: model_pb2.ModelCard
    ) -> Prompt:
        """The prompt of a request to continue one.

        Args:
            text: as `validation.prompt_of` found it.
        """
        if request.HasField("suffix"):
            return await self._gap(text, request.suffix, card)
        if request.HasField("parts"):
            return await self._of_parts(request.parts, card)
        field = request.WhichOneof("prompt") or "prompt"
        if isinstance(text, str):
            ids = await self._tokenizers.tokenize(card.digest, text, card.context_length, field=field)
            return Prompt(ids, field)
        validation.check_prompt_length(len(text), card, field=field)
        generation_limits.check_token_ids(text, card.vocabulary_size, field="token_ids.ids")
        return Prompt(text, field)

    async def _of_parts(self, given: inference_pb2.PromptParts, card: model_pb2.ModelCard) -> Prompt:
        """The prompt of texts, images and sounds. The latter are stored by then."""
        messages = [inference_pb2.ChatMessage(role="user", parts=given.parts)]
        asked = tokenizer_pb2.RenderChat(is_plain=True)
        made = await self.rendered(messages, card, asked, name="parts.parts[{1}]")
        return Prompt(made.tokens.ids, "parts", made.images)

    async def _gap(self, prefix: str | Sequence[int], suffix: str, card: model_pb2.ModelCard) -> Prompt:
        """The prompt of an answer that fills the gap between two texts.

        Raises:
            InvalidArgument: the prefix is no text, or the vocabulary has no tokens for it.
        """
        if not isinstance(prefix, str):
            raise InvalidArgument("suffix: the prompt has to be a text", field="suffix")
        size = len(prefix.encode()) + len(suffix.encode())
        validation.check_text_size(size, self._max_text_bytes, "suffix")
        ids = await self._tokenizers.tokenize_gap(card.digest, prefix, suffix, card.context_length)
        return Prompt(ids, "suffix")

    async def text_of(self, prompt: Prompt, card: model_pb2.ModelCard) -> str:
        """The prompt as the model gets it, whichever way it was given; without its images."""
        if prompt.text is not None:
            return prompt.text
        ids = without_placeholders(prompt.token_ids) if prompt.images else prompt.token_ids
        return await self._tokenizers.detokenize(card.digest, ids)
