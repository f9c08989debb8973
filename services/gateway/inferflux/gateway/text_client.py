"""The gateway's end of its text process: asks, waits no longer than allowed, starts a new one if need be."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from inferflux.common import logs
from inferflux.common.errors import (
    InferFluxError,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from inferflux.v1 import inference_pb2, text_pb2

from .text_child import ProcessGoneError, ProcessLateError, TextChild

log = logs.get()

# How many processes may die under a text, by themselves or killed for another's sake, before it is given up.
_MAX_CRASHES = 2
_MAX_DEATHS = 10
# What a text gets at least in a new process, however long it has been worked on in earlier ones.
_LEAST_TIME_S = 0.2


@dataclass(frozen=True, slots=True)
class TextLimits:
    """What a text process may use.

    Attributes:
        threads: texts worked on at the same time.
        waiting: texts that may wait for a free thread; one more is refused.
        time_limit_s: for rendering and tokenizing one text; the process is killed when it is over.
        load_limit_s: the same for loading a tokenizer.
        memory_bytes: address space, the threads' stacks of 512 MiB each included.
        rendered_bytes: a rendered prompt.
    """

    threads: int = 2
    waiting: int = 256
    time_limit_s: float = 2.0
    load_limit_s: float = 30.0
    memory_bytes: int = 4 << 30
    rendered_bytes: int = 8 << 20


class TextClient:
    """Renders and tokenizes in the text process.

    A text that takes longer than the limit costs the process its life; the other texts it was working on
    are handed to the next one. So are texts under which a process crashed, once.

    Args:
        tokenizer_path: where the tokenizer file of a digest lies; raises InferFluxErrors.
        on_alive: told whenever a process comes up or goes.
    """

    def __init__(
        self,
        limits: TextLimits,
        tokenizer_path: Callable[[str], Awaitable[Path]],
        on_alive: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._limits = limits
        self._tokenizer_path = tokenizer_path
        self._on_alive = on_alive
        self._ids = itertools.count(1)
        self._threads = asyncio.Semaphore(limits.threads)
        self._n_waiting = 0
        self._child: TextChild | None = None
        self._starting = asyncio.Lock()
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._reaping: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._child is None or self._child.is_gone else self._child.pid

    async def start(self) -> None:
        """Start the process ahead of the first request."""
        await self._running()

    async def close(self) -> None:
        async with self._starting:
            self._is_closed = True
            for task in self._loading.values():
                task.cancel()
            if self._child is not None:
                await self._child.close()
        await asyncio.gather(*self._loading.values(), *self._reaping, return_exceptions=True)

    async def load(self, digest: str) -> None:
        """Load a tokenizer, so that the first request for it is not slower than the next.

        Raises:
            Unavailable: there is none, or it cannot be used.
        """
        for _ in range(_MAX_DEATHS):
            try:
                await self._ensure_loaded(await self._running(), digest)
            except ProcessGoneError as error:
                if not error.is_blameless:
                    break
            else:
                return
        raise Unavailable("the text process ends while loading the tokenizer", reason="TOKENIZER_FAILED")

    async def render_chat(
        self, digest: str, messages: Sequence[inference_pb2.ChatMessage], context_length: int
    ) -> Sequence[int]:
        """Token ids of a conversation, rendered with the model's own template.

        Raises:
            InvalidArgument: the template or the messages are at fault; field `messages`.
            ResourceExhausted: too many texts wait.
            Unavailable, Internal: no usable tokenizer, or the process died over this text twice.
        """
        chat = text_pb2.RenderChat(messages=messages)
        request = text_pb2.TextRequest(digest=digest, context_length=context_length, chat=chat)
        return await self._work(request, field="messages")

    async def tokenize(
        self, digest: str, text: str, context_length: int, *, field: str = "text"
    ) -> Sequence[int]:
        """Token ids of a text, BOS first where the model wants one; raises as `render_chat`."""
        work = text_pb2.TokenizeText(text=text)
        request = text_pb2.TextRequest(digest=digest, context_length=context_length, text=work)
        return await self._work(request, field=field)

    async def _work(self, request: text_pb2.TextRequest, *, field: str) -> Sequence[int]:
        crashes = 0
        left_s = limit_s = self._limits.time_limit_s
        for _ in range(_MAX_DEATHS):
            try:
                response = await self._ask_loaded(request, left_s)
            except ProcessGoneError as error:
                left_s = max(left_s - error.worked_s, _LEAST_TIME_S)
                crashes += not error.is_blameless
                if crashes == _MAX_CRASHES:
                    break
                continue
            except ProcessLateError:
                log.warning("killed the text process: a text took too long", limit_s=limit_s)
                message = f"rendering the chat template and tokenizing took longer than {limit_s:g} s"
                raise InvalidArgument(message, field=field, reason="TEXT_TOO_SLOW") from None
            if response.WhichOneof("result") == "tokens":
                return response.tokens.ids
            raise _to_error(response.error, field)
        raise Internal("the text process died over this text", reason="TOKENIZER_CRASHED")

    async def _ask_loaded(self, request: text_pb2.TextRequest, limit_s: float) -> text_pb2.TextResponse:
        child = await self._running()
        await self._ensure_loaded(child, request.digest)
        response = await self._ask(child, request, limit_s)
        if response.error.fault == text_pb2.TEXT_FAULT_UNKNOWN_TOKENIZER:  # dropped in favour of others
            child.loaded.discard(request.digest)
            await self._ensure_loaded(child, request.digest)
            response = await self._ask(child, request, limit_s)
        return response

    async def _ask(
        self, child: TextChild, request: text_pb2.TextRequest, limit_s: float
    ) -> text_pb2.TextResponse:
        """Ask when a thread is free. It is busy until the answer, even if nobody waits for that any more."""
        if self._threads.locked():
            if self._n_waiting >= self._limits.waiting:
                message = f"{self._n_waiting} texts wait to be tokenized already"
                raise ResourceExhausted(message, reason="TEXT_QUEUE_FULL")
            self._n_waiting += 1
            try:
                await self._threads.acquire()
            finally:
                self._n_waiting -= 1
        else:
            await self._threads.acquire()
        request.id = next(self._ids)
        answer = child.ask(request, limit_s)
        answer.add_done_callback(lambda _: self._threads.release())
        return await asyncio.shield(answer)

    async def _ensure_loaded(self, child: TextChild, digest: str) -> None:
        if digest in child.loaded:
            return
        task = self._loading.get(digest)
        if task is None:
            task = self._loading[digest] = asyncio.create_task(self._load(child, digest))
            task.add_done_callback(lambda _: self._loading.pop(digest, None))
        await asyncio.shield(task)

    async def _load(self, child: TextChild, digest: str) -> None:
        path = await self._tokenizer_path(digest)
        request = text_pb2.TextRequest(digest=digest, load=text_pb2.LoadTokenizer(path=str(path)))
        try:
            response = await self._ask(child, request, self._limits.load_limit_s)
        except ProcessLateError as error:
            message = f"loading the model's tokenizer took longer than {error.limit_s:g} s"
            raise Unavailable(message, reason="TOKENIZER_FAILED") from None
        if response.WhichOneof("result") != "loaded":
            message = f"the model's tokenizer cannot be used: {response.error.message}"
            raise Unavailable(message, reason="TOKENIZER_FAILED", retry_delay_s=None)
        child.loaded.add(digest)

    async def _running(self) -> TextChild:
        """The process, started anew if the last one is gone."""
        child = self._child
        if child is not None and not child.is_gone:
            return child
        async with self._starting:
            if self._is_closed:
                raise Unavailable("the gateway is shutting down", reason="DRAINING")
            if self._child is None or self._child.is_gone:
                if self._child is not None:
                    self._reap(self._child)
                self._child = await TextChild.start(
                    threads=self._limits.threads,
                    memory_bytes=self._limits.memory_bytes,
                    rendered_bytes=self._limits.rendered_bytes,
                    on_gone=self._on_child_gone,
                )
                self._on_alive(True)
            return self._child

    def _on_child_gone(self) -> None:
        self._on_alive(False)
        if not self._is_closed:
            log.warning("the text process has ended")

    def _reap(self, child: TextChild) -> None:
        task = asyncio.create_task(child.close())
        self._reaping.add(task)
        task.add_done_callback(self._reaping.discard)


_BLAMELESS = frozenset({text_pb2.TEXT_FAULT_BAD_TOKENIZER, text_pb2.TEXT_FAULT_UNKNOWN_TOKENIZER})
_REASONS = {
    text_pb2.TEXT_FAULT_NO_TEMPLATE: "NO_CHAT_TEMPLATE",
    text_pb2.TEXT_FAULT_BAD_TEMPLATE: "BAD_CHAT_TEMPLATE",
    text_pb2.TEXT_FAULT_REFUSED: "REFUSED_BY_CHAT_TEMPLATE",
}


def _to_error(error: text_pb2.TextError, field: str) -> InferFluxError:
    if error.fault in _BLAMELESS:
        return Unavailable(error.message, reason="TOKENIZER_FAILED")
    message = error.message
    if error.fault == text_pb2.TEXT_FAULT_NO_TEMPLATE:
        message += ": use Generate"
    return InvalidArgument(message, field=field, reason=_REASONS.get(error.fault, ""))
