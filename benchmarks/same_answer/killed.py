"""Answers of a whole stack whose worker is killed in their middle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from benchmarks.grpc_target import generate_request
from benchmarks.lab import LabError
from benchmarks.scheduling.ground import Ground, ground, until
from benchmarks.scheduling.streams import ends, failures
from inferflux.cli.stack import StackOptions

_AT_ONCE = 8
_LIMIT_S = 600.0


def answers_of_killed(
    model: Path, prompts: Sequence[list[int]], max_tokens: int, *, threads: int, deterministic: bool
) -> list[list[int]]:
    """Greedy answers to the prompts. Each begins on a worker that then gets kill -9, and ends on another.

    Raises:
        LabError: a request failed, lost a token, got one twice, or was answered by one worker alone.
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
    found: list[list[int]] = []
    async with ground(options) as on:
        victim, spare = "worker-0", "worker-1"
        for i in range(0, len(prompts), _AT_ONCE):
            group = prompts[i : i + _AT_ONCE]
            found += await _killed(on, group, max_tokens, victim, spare, deterministic=deterministic)
            await on.stack.restart(victim)
            await on.until_scheduler(lambda s: len(s.workers) == options.workers)
            victim, spare = spare, victim
    return found


async def _killed(
    on: Ground,
    prompts: Sequence[list[int]],
    max_tokens: int,
    victim: str,
    spare: str,
    *,
    deterministic: bool,
) -> list[list[int]]:
    requests = [generate_request(on.model, prompt, max_tokens) for prompt in prompts]
    for request in requests:
        if deterministic:
            request.params.deterministic = True
    await on.drain(spare)
    underway = [on.caller.send(request) for request in requests]
    streams = [one.stream for one in underway]
    await until(
        lambda: all(stream.tokens >= max_tokens // 4 or stream.error for stream in streams),
        patience_s=_LIMIT_S,
    )
    await on.admin.undrain(spare)
    await on.stack.kill(victim)
    await ends(underway, _LIMIT_S)
    if failed := failures(streams):
        raise LabError(f"a stream failed: {failed[0]}")
    for stream in streams:
        if stream.workers != [victim, spare] or stream.lost or stream.doubled:
            raise LabError(
                f"a stream of {', '.join(stream.workers)}: {stream.lost} tokens lost, {stream.doubled} twice"
            )
    return [stream.token_ids for stream in streams]
