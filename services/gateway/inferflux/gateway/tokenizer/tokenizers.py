"""The gateway's tokenizers: a process for each model, a bounded number of them at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from inferflux.common.contract.errors import InvalidArgument, ResourceExhausted, Unavailable
from inferflux.common.process.tasks import Background
from inferflux.gateway.images.inputs import without_files
from inferflux.v1 import generation_pb2, inference_pb2, tokenizer_pb2

from .model_tokenizer import ModelTokenizer, TokenizerLimits

# Models without a process of which is remembered whether their tokenizer could be loaded.
_MAX_REMEMBERED = 256


class Tokenizers:
    """Renders and tokenizes, each model in a process of its own: what ends one disturbs no other model.

    A process is started when its model appears or is first asked for. When one more than allowed is needed,
    the idle one that was asked least recently ends.

    Args:
        tokenizer_path: where the tokenizer file of a digest lies; raises InferFluxErrors.
    """

    def __init__(self, limits: TokenizerLimits, tokenizer_path: Callable[[str], Awaitable[Path]]) -> None:
        self._limits = limits
        self._tokenizer_path = tokenizer_path
        # The one asked least recently first.
        self._models: OrderedDict[str, ModelTokenizer] = OrderedDict()
        self._ending = Background()
        self._is_closed = False

    @property
    def pids(self) -> dict[str, int]:
        """The ids of the processes that run now, by digest."""
        return {digest: model.pid for digest, model in self._models.items() if model.pid is not None}

    async def close(self) -> None:
        """End every process."""
        self._is_closed = True
        await asyncio.gather(*(model.close() for model in self._models.values()))
        await self._ending.finish(None)

    async def load(self, digest: str) -> None:
        """Load a tokenizer, so that the first request for it is not slower than the next.

        Raises:
            Unavailable: there is none, or it cannot be used.
            ResourceExhausted: every process is busy with other models.
        """
        await self._model(digest).load()

    def revive(self) -> str:
        """Start processes again that have ended. Returns why the system starts none, "" if it does."""
        for model in self._models.values():
            if model.should_revive and len(self._running()) < self._limits.processes:
                model.start_loading()
        started_at = max((model.started_at for model in self._models.values()), default=0.0)
        refused = (m for m in self._models.values() if m.start_error and m.refused_at > started_at)
        return next((model.start_error for model in refused), "")

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
    ) -> tokenizer_pb2.RenderedChat:
        """Token ids of a conversation, rendered with the model's own template, and how to read its answer.

        Args:
            asked: how it is to be rendered.
            images: those of the messages' parts in order.
            projector: the digest of what tells how prompts hold them.

        Raises:
            InvalidArgument: the template or the messages are at fault; field `messages`. Field `tools` where
                the template does not know tools.
            ResourceExhausted: too many texts wait, or every process is busy with other models.
            Unavailable, Internal: no usable tokenizer, or the process died over this text twice.
        """
        chat = tokenizer_pb2.RenderChat(messages=without_files(messages), tools=tools, images=images)
        if asked is not None:
            chat.MergeFrom(asked)
        if images:
            chat.projector_path = str(await self._tokenizer_path(projector))
        request = tokenizer_pb2.TokenizerRequest(digest=digest, context_length=context_length, chat=chat)
        field = "parts" if chat.is_plain else "messages"
        return (await self._model(digest).work(request, field=field)).chat

    async def describe(self, digest: str) -> tokenizer_pb2.TokenizerDescribed:
        """Describe a tokenizer to programs that tokenize for themselves; raises as `render_chat`."""
        work = tokenizer_pb2.DescribeTokenizer()
        request = tokenizer_pb2.TokenizerRequest(digest=digest, describe=work)
        return (await self._model(digest).work(request, field="model")).described

    async def tokenize(
        self, digest: str, text: str, context_length: int, *, field: str = "text", is_bare: bool = False
    ) -> Sequence[int]:
        """Token ids of a text, with BOS where the model wants one or without; raises as `render_chat`."""
        work = tokenizer_pb2.TokenizeText(text=text, is_bare=is_bare)
        request = tokenizer_pb2.TokenizerRequest(digest=digest, context_length=context_length, text=work)
        return (await self._model(digest).work(request, field=field)).tokens.ids

    async def tokenize_texts(
        self,
        digest: str,
        texts: Sequence[str],
        context_length: int,
        *,
        field: str,
        query: str | None = None,
        truncate: bool = False,
    ) -> list[Sequence[int]]:
        """Token ids of texts to embed, or to rank by how well they answer `query`; raises as `render_chat`.

        Args:
            truncate: cut what is longer than the context. Otherwise some may be.
        """
        work = tokenizer_pb2.TokenizeTexts(texts=texts, query=query, truncate=truncate)
        request = tokenizer_pb2.TokenizerRequest(digest=digest, context_length=context_length, texts=work)
        try:
            answer = await self._model(digest).work(request, field=field)
        except InvalidArgument as error:
            if query is None or error.reason != "PROMPT_TOO_LONG":
                raise
            # Documents are cut: the query alone can be too long.
            raise InvalidArgument(error.message, field="query", reason=error.reason) from None
        return [tokens.ids for tokens in answer.texts.texts]

    async def tokenize_bare(self, digest: str, texts: Sequence[str], *, field: str) -> list[Sequence[int]]:
        """Token ids of texts by themselves; raises as `render_chat`."""
        work = tokenizer_pb2.TokenizeTexts(texts=texts, is_bare=True)
        request = tokenizer_pb2.TokenizerRequest(digest=digest, texts=work)
        answer = await self._model(digest).work(request, field=field)
        return [tokens.ids for tokens in answer.texts.texts]

    async def tokenize_gap(self, digest: str, prefix: str, suffix: str, context_length: int) -> Sequence[int]:
        """Token ids of the prompt of an answer between two texts; raises as `render_chat`, naming `suffix`
        where the vocabulary has no tokens for it."""
        work = tokenizer_pb2.TokenizeGap(prefix=prefix, suffix=suffix)
        request = tokenizer_pb2.TokenizerRequest(digest=digest, context_length=context_length, gap=work)
        return (await self._model(digest).work(request, field="suffix")).tokens.ids

    async def detokenize(self, digest: str, token_ids: Sequence[int], *, field: str = "token_ids") -> str:
        """The text of token ids, which have to be in the vocabulary; raises as `render_chat`."""
        work = tokenizer_pb2.DetokenizeIds(tokens=inference_pb2.TokenIds(ids=token_ids))
        request = tokenizer_pb2.TokenizerRequest(digest=digest, detokenize=work)
        return (await self._model(digest).work(request, field=field)).text

    async def compile(
        self, digest: str, constraint: generation_pb2.StructuredConstraint, *, field: str
    ) -> None:
        """Do what a worker does with a constraint; raises as `render_chat`."""
        await self._model(digest).compile(constraint, field=field)

    def _model(self, digest: str) -> ModelTokenizer:
        if self._is_closed:
            raise Unavailable("the gateway is shutting down", reason="DRAINING")
        model = self._models.get(digest)
        if model is None or model.needs_process:
            self._make_room()
        if model is None:
            model = self._models[digest] = ModelTokenizer(digest, self._limits, self._tokenizer_path)
        self._models.move_to_end(digest)
        return model

    def _make_room(self) -> None:
        """End the idle process that was asked least recently, if there may not be one more."""
        running = self._running()
        if len(running) >= self._limits.processes:
            self._drop(_first_idle(running))
        if len(self._models) >= _MAX_REMEMBERED + self._limits.processes:
            self._drop(_first_idle(list(self._models.values())))

    def _running(self) -> list[ModelTokenizer]:
        return [model for model in self._models.values() if model.has_process]

    def _drop(self, model: ModelTokenizer) -> None:
        del self._models[model.digest]
        self._ending.start(model.close())


def _first_idle(models: Sequence[ModelTokenizer]) -> ModelTokenizer:
    """Raises:
    ResourceExhausted: none is idle (TOKENIZERS_BUSY).
    """
    idle = next((model for model in models if model.is_idle), None)
    if idle is None:
        message = f"all {len(models)} tokenizers are busy with other models"
        raise ResourceExhausted(message, reason="TOKENIZERS_BUSY")
    return idle
