"""What a run of serve.py asks for."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks import serve

_VARIED = ["--url", "127.0.0.1:1", "--model", "m", "--prompt-characters", "64:1500"]


def prompts_of(*words: str) -> list[str]:
    server: Any = None  # prompts of words need none
    source = asyncio.run(serve._prompts(serve.parse([*_VARIED, *words]), server))
    return [str(source[index]) for index in range(20)]


def test_another_take_has_prompts_of_the_same_lengths_and_shares_no_beginning() -> None:
    first, second = prompts_of("--take", "1"), prompts_of("--take", "2")
    assert [len(text) for text in first] == [len(text) for text in second]
    assert not {text[:32] for text in first} & {text[:32] for text in second}


def test_a_take_of_one_seed_is_no_take_of_another() -> None:
    runs = [prompts_of("--seed", str(seed), "--take", str(take)) for seed in (1, 2, 3) for take in (1, 2, 3)]
    beginnings = [text[:32] for run in runs for text in run]
    assert len(set(beginnings)) == len(beginnings)
