"""Sending requests: some at a time, or at random moments of a given rate."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from .prompts import LogNormal, Prompt, PromptSource
from .trace import Trace


class Target(Protocol):
    """A server under load."""

    async def vocabulary_size(self) -> int:
        """Tokens the served model knows."""

    async def generate(self, prompt: Prompt, max_tokens: int, trace: Trace) -> None:
        """Send one request that ignores the model's own end, and keep `trace` up to date."""

    async def close(self) -> None:
        """Give the connections back."""


Send = Callable[[int, Trace], Awaitable[None]]
"""Sends request number i; fills its trace."""


def sender(target: Target, prompts: PromptSource, *, max_tokens: int | LogNormal, limit_s: float) -> Send:
    """Requests to `target` that fail when they take longer than `limit_s`.

    Args:
        max_tokens: tokens of each answer, or how they are distributed.
    """

    async def send(index: int, trace: Trace) -> None:
        length = max_tokens if isinstance(max_tokens, int) else max_tokens[index]
        try:
            async with asyncio.timeout(limit_s):
                await target.generate(prompts[index], length, trace)
        except TimeoutError:
            trace.error = f"not finished within {limit_s:g} s"
        trace.ended_s = time.perf_counter()

    return send


async def closed_loop(
    send: Send, *, requests: range, concurrency: int, on_done: Callable[[], None]
) -> list[Trace]:
    """Keep `concurrency` requests on the way: the next one is sent when one ends."""
    traces: list[Trace] = []
    numbers: Iterator[int] = iter(requests)

    async def one_after_the_other() -> None:
        for index in numbers:
            trace = Trace(sent_s=time.perf_counter())
            traces.append(trace)
            await send(index, trace)
            on_done()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(requests))):
            group.create_task(one_after_the_other())
    return traces


def poisson_moments(count: int, rate: float, seed: int) -> list[float]:
    """Seconds after the start at which `count` requests of a Poisson process of `rate` per second come."""
    rng = random.Random(seed)
    moments: list[float] = []
    at = 0.0
    for _ in range(count):
        at += rng.expovariate(rate)
        moments.append(at)
    return moments


async def open_loop(
    send: Send, *, requests: range, rate: float, seed: int, on_done: Callable[[], None]
) -> list[Trace]:
    """Send requests at random moments, however many are still on the way.

    A request's time counts from the moment it was due: a client that falls behind hides nothing.
    """
    traces: list[Trace] = []
    began = time.perf_counter()

    async def one(index: int, trace: Trace) -> None:
        await send(index, trace)
        on_done()

    async with asyncio.TaskGroup() as group:
        for index, moment in zip(requests, poisson_moments(len(requests), rate, seed), strict=True):
            due = began + moment
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            trace = Trace(sent_s=due)
            traces.append(trace)
            group.create_task(one(index, trace))
    return traces
