"""The generations of one call: one, or several of the same prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING

from inferflux.common.errors import Cancelled
from inferflux.common.tasks import cancel_all
from inferflux.v1 import generation_pb2, tokens_pb2

if TYPE_CHECKING:
    from inferflux.gateway.generation import Generation

OnSubmit = Callable[["Generation"], None]
Opener = Callable[[int], "AbstractAsyncContextManager[Generation]"]
Indexed = tuple[int, tokens_pb2.TokenChunk]
Chunks = AsyncGenerator[Indexed, None]

# Chunks of several choices that wait for a slow client; then the generations are read no further.
_MOST_WAITING = 256


def chunks_of(opener: Opener, n: int, *, on_submit: OnSubmit) -> Chunks:
    """Chunks of all choices, each with the number of its choice.

    The first choice begins alone, so that its prompt is cached when the others are submitted.

    Args:
        opener: opens the generation of a choice.
        on_submit: told of the first generation when it has been submitted.

    Raises:
        InferFluxError: of the first choice that fails; the others are cancelled.
    """
    return _one(opener, 0, on_submit) if n == 1 else _several(opener, n, on_submit)


async def _one(opener: Opener, index: int, on_submit: OnSubmit) -> Chunks:
    async with opener(index) as generation:
        on_submit(generation)
        async for chunk in generation:
            _check_reason(chunk)
            yield index, chunk


async def _several(opener: Opener, n: int, on_submit: OnSubmit) -> Chunks:
    merged: asyncio.Queue[Indexed | BaseException | None] = asyncio.Queue(_MOST_WAITING)

    async def run(index: int) -> None:
        note = on_submit if index == 0 else _ignore
        try:
            async with aclosing(_one(opener, index, note)) as chunks:
                async for item in chunks:
                    await merged.put(item)
        except Exception as error:  # noqa: BLE001 - raised where the chunks are read
            await merged.put(error)
        else:
            await merged.put(None)

    tasks = [asyncio.create_task(run(0))]
    try:
        left = n
        while left:
            item = await merged.get()
            if isinstance(item, BaseException):
                raise item
            if len(tasks) == 1 and (item is None or item[1].token_ids or item[1].HasField("finished")):
                tasks += [asyncio.create_task(run(i)) for i in range(1, n)]
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        await cancel_all(tasks)


def _ignore(_generation: Generation) -> None:
    """Only the first generation is told of."""


def _check_reason(chunk: tokens_pb2.TokenChunk) -> None:
    """Raises:
    Cancelled: the request was cancelled by another call.
    """
    if chunk.HasField("finished") and chunk.finished.reason == generation_pb2.FINISH_REASON_CANCELLED:
        raise Cancelled("the request was cancelled")
