"""The generations of one call: one, or several choices of one or several prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING

from inferflux.common.contract.errors import Cancelled
from inferflux.common.process.tasks import cancel_all
from inferflux.gateway.http.errors.errors import SchemaMismatch
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

if TYPE_CHECKING:
    from inferflux.gateway.request.generation import Generation

OnBegun = Callable[["Generation"], None]
Opener = Callable[[int], "AbstractAsyncContextManager[Generation]"]
# The number of a choice, a chunk of it, and what its text is where that is not all content.
Indexed = tuple[int, tokens_pb2.TokenChunk, inference_pb2.ChatDelta | None]
Chunks = AsyncGenerator[Indexed, None]

# Chunks of several choices that wait for a slow client; then the generations are read no further.
_MOST_WAITING = 256


def chunks_of(opener: Opener, *, prompts: int, n: int, on_begun: OnBegun) -> Chunks:
    """Chunks of all choices, each with the number of its choice: choice c of prompt p is p * n + c.

    Each prompt's first choice begins alone, so that the prompt is cached when its others begin.

    Args:
        opener: opens the generation of a choice.
        on_begun: told of the first generation when its answer has begun.

    Raises:
        InferFluxError: of the first choice that fails; the others are cancelled.
    """
    if prompts * n == 1:
        return _one(opener, 0, on_begun)
    return _several(opener, prompts, n, on_begun)


async def _one(opener: Opener, index: int, on_begun: OnBegun) -> Chunks:
    async with opener(index) as generation:
        on_begun(generation)
        async for chunk in generation:
            _check_reason(chunk)
            yield index, chunk, generation.read(chunk)


async def _several(opener: Opener, prompts: int, n: int, on_begun: OnBegun) -> Chunks:
    merged: asyncio.Queue[Indexed | Exception] = asyncio.Queue(_MOST_WAITING)
    tasks: list[asyncio.Task[None]] = []

    def start(index: int) -> None:
        note = on_begun if index == 0 else _ignore
        tasks.append(asyncio.create_task(_run(opener, index, note, merged)))

    alone = set(range(0, prompts * n, n))
    left = prompts * n
    try:
        for first in sorted(alone):
            start(first)
        while left:
            item = await merged.get()
            if isinstance(item, Exception):
                raise item
            index, chunk, _ = item
            is_end = chunk.HasField("finished")
            left -= is_end
            if index in alone and (is_end or chunk.token_ids):
                alone.remove(index)
                for other in range(index + 1, index + n):
                    start(other)
            yield item
    finally:
        await cancel_all(tasks)


async def _run(
    opener: Opener, index: int, on_begun: OnBegun, merged: asyncio.Queue[Indexed | Exception]
) -> None:
    """Put a choice's chunks into the queue. They end with `finished` or with an error."""
    try:
        async with aclosing(_one(opener, index, on_begun)) as chunks:
            async for item in chunks:
                await merged.put(item)
    except Exception as error:  # noqa: BLE001 - raised where the chunks are read
        await merged.put(error)


def _ignore(_generation: Generation) -> None:
    """Only the first generation is told of."""


def _check_reason(chunk: tokens_pb2.TokenChunk) -> None:
    """Raises:
    Cancelled: the request was cancelled by another call.
    SchemaMismatch: the answer is complete, and does not match its schema.
    """
    if not chunk.HasField("finished"):
        return
    if chunk.finished.reason == generation_pb2.FINISH_REASON_CANCELLED:
        raise Cancelled("the request was cancelled")
    if chunk.finished.reason == generation_pb2.FINISH_REASON_SCHEMA_MISMATCH:
        raise SchemaMismatch(f"the answer does not match its schema: {chunk.finished.mismatch}")
