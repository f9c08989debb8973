"""Clients that ask without pause and hold every answer against the undisturbed one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from chaos.caller import Caller
from chaos.transcript import Transcript
from chaos.workload import PROMPTS, Order, countdown_text
from harness.client import Client, countdown

# Longer than any fault, the time in which a client notices it, and that in which everything is up again.
_RESUME_WINDOW_S = 120
# A fault comes when this many answers have begun that it will interrupt.
_ANSWERING = 2

Answers = Mapping[tuple[int, int], list[int]]


async def undisturbed(client: Client) -> Answers:
    """The token ids of each prompt's answer, asked one by one; their texts are known."""
    found = {}
    for start, end in PROMPTS:
        answer = await client.ask(countdown(start, end))
        assert answer.text == countdown_text(start, end)
        found[start, end] = answer.token_ids
    return found


class Load:
    """Streams that ask one request after the other.

    Each client does as a good client should: it sends again what was refused for a moment, and resumes a
    stream that broke.
    """

    def __init__(self, client: Client, expected: Answers, name: str) -> None:
        self._caller = Caller(
            [client],
            expected,
            is_poisoned=lambda _: False,
            clock=time.monotonic,
            resume_window_s=_RESUME_WINDOW_S,
        )
        self._name = name
        self._is_over = False
        self.done: list[Transcript] = []

    async def one(self, stream: int, number: int) -> Transcript:
        """Ask one request to its end."""
        start, end = PROMPTS[(stream + number) % len(PROMPTS)]
        transcript = await self._caller.serve(Order(f"{self._name}-{stream}-{number}", start, end, 0, 0))
        self.done.append(transcript)
        return transcript

    async def stream(self, stream: int) -> None:
        number = 0
        while not self._is_over:
            await self.one(stream, number)
            number += 1

    async def until_done(self, more: int, limit_s: float) -> None:
        """Return once `more` further requests have ended."""
        wanted = len(self.done) + more
        async with asyncio.timeout(limit_s):
            while len(self.done) < wanted:
                await asyncio.sleep(0.05)

    async def until_answering(self, limit_s: float, worker: str = "") -> None:
        """Return once several answers are in their first half, all on the worker whose name begins so."""
        async with asyncio.timeout(limit_s):
            while len(self._answering(worker)) < _ANSWERING:
                await asyncio.sleep(0.002)

    def _answering(self, worker: str) -> list[Transcript]:
        return [
            each
            for each in self._caller.underway.values()
            if 0 < each.offset < len(each.expected) / 2 and "".join(each.workers[-1:]).startswith(worker)
        ]

    @asynccontextmanager
    async def running(self, streams: int) -> AsyncIterator[None]:
        """Keep `streams` requests under way; at the end each one under way is read to its end."""
        tasks = [asyncio.create_task(self.stream(i)) for i in range(streams)]
        try:
            yield
            self._is_over = True
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def check(self) -> str:
        """A line about what was served; fails if anything was wrong, lost, repeated or refused for good."""
        wrong = [f"{t.request_id}: {breach} ({t.describe()})" for t in self.done for breach in t.breaches()]
        assert not wrong, "\n".join(wrong)
        retried = sum(max(t.epochs, default=0) > min(t.epochs, default=0) for t in self.done)
        return (
            f"{len(self.done)} requests, {sum(t.offset for t in self.done)} tokens, all as undisturbed; "
            f"{sum(t.resumes for t in self.done)} resumes, {retried} went on under a later epoch, "
            f"longest silence {max(t.longest_silence_s for t in self.done):.1f} s"
        )
