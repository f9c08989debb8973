"""Answers of a whole stack whose worker is killed in their middle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load.grpc_target import generate_request
from benchmarks.rows.lab import LabError
from benchmarks.scheduling.ground import Ground, ground, until
from benchmarks.scheduling.streams import Stream, ends, failures
from inferflux.cli.stack import StackOptions

_AT_ONCE = 8
# Kills for each prompt, at most.
_TRIES = 3
_LIMIT_S = 600.0


def answers_of_killed(
    model: Path, prompts: Sequence[list[int]], max_tokens: int, *, threads: int, deterministic: bool
) -> list[list[int]]:
    """Greedy answers to the prompts. Each begins on a worker that then gets kill -9, and ends on another.

    Raises:
        LabError: a request failed, lost a token or got one twice, or answers are too short.
    """
    options = StackOptions(
        model=model,
        workers=2,
        slots=_AT_ONCE,
        threads=threads,
        kv_cells=8192,
        # On a machine that others use a step may take long.
        env={"INFERFLUX_WORKER_STUCK_S": str(_LIMIT_S)},
        restarts=False,
    )
    return asyncio.run(_answers(options, prompts, max_tokens, deterministic=deterministic))


async def _answers(
    options: StackOptions, prompts: Sequence[list[int]], max_tokens: int, *, deterministic: bool
) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    async with ground(options) as on:
        victim, spare = "worker-0", "worker-1"
        left, kills = list(range(len(prompts))), 0
        while left:
            if kills > _TRIES * len(prompts):
                raise LabError("answers end before the kill: ask for longer ones")
            group, left = left[:_AT_ONCE], left[_AT_ONCE:]
            asked = [prompts[i] for i in group]
            streams = await _killed(on, asked, max_tokens, victim, spare, deterministic=deterministic)
            for i, stream in zip(group, streams, strict=True):
                if stream.workers == [victim, spare]:
                    found[i] = stream.token_ids
                else:  # it had ended before
                    left.append(i)
            kills += 1
            if left:
                await on.stack.restart(victim)
                await on.until_scheduler(lambda s: len(s.workers) == options.workers)
                victim, spare = spare, victim
    return [found[i] for i in range(len(prompts))]


async def _killed(
    on: Ground,
    prompts: Sequence[list[int]],
    max_tokens: int,
    victim: str,
    spare: str,
    *,
    deterministic: bool,
) -> list[Stream]:
    """Streams that were under way on the victim when it got kill -9, and what became of them."""
    requests = [generate_request(on.model, prompt, max_tokens) for prompt in prompts]
    for request in requests:
        if deterministic:
            request.params.deterministic = True
    await on.drain(spare)
    underway = [on.caller.send(request) for request in requests]
    streams = [one.stream for one in underway]
    await until(
        lambda: all(stream.tokens or stream.error for stream in streams),
        patience_s=_LIMIT_S,
    )
    await on.stack.kill(victim)
    await on.admin.undrain(spare)
    await ends(underway, _LIMIT_S)
    if failed := failures(streams):
        raise LabError(f"a stream failed: {failed[0]}")
    if broken := [stream for stream in streams if stream.lost or stream.doubled]:
        raise LabError(f"a stream lost {broken[0].lost} tokens, and got {broken[0].doubled} twice")
    return streams
