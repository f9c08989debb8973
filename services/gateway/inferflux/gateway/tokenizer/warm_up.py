"""Loads tokenizers as models appear, so that a model's first request is not slower than its second."""

from __future__ import annotations

import asyncio

from inferflux.common.contract.errors import InferFluxError
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background

from .tokenizers import Tokenizers

log = logs.get()

# More tokenizers than these do not become ready at a time; others are loaded at their first request.
_MAX_UNDER_WAY = 64
# Read from the object store and loaded at the same time.
_MAX_AT_ONCE = 4
# Seconds before each further attempt: a worker may announce its model before its tokenizer is stored.
_RETRIES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class WarmUp:
    """Has each tokenizer loaded ahead."""

    def __init__(self, tokenizers: Tokenizers, background: Background) -> None:
        self._tokenizers = tokenizers
        self._background = background
        self._under_way: set[str] = set()
        self._places = asyncio.Semaphore(_MAX_AT_ONCE)

    def on_model(self, digest: str) -> None:
        """Load a tokenizer in the background, unless too many are under way."""
        if digest in self._under_way or len(self._under_way) >= _MAX_UNDER_WAY:
            return
        self._under_way.add(digest)
        task = self._background.start(self._load(digest))
        task.add_done_callback(lambda _: self._under_way.discard(digest))

    async def _load(self, digest: str) -> None:
        for delay_s in _RETRIES_S:
            try:
                async with self._places:
                    await self._tokenizers.load(digest)
            except InferFluxError as error:
                log.info("a tokenizer is not loaded yet", digest=digest[:12], why=error.message)
                await asyncio.sleep(delay_s)
            else:
                log.info("loaded a tokenizer", digest=digest[:12])
                return
