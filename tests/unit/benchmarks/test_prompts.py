"""What requests ask for."""

from __future__ import annotations

import math
import statistics

import pytest

from benchmarks.load.loops import sender
from benchmarks.load.prompts import LogNormal, Prompt, Prompts, TextPrompts, middle_of
from benchmarks.load.trace import Trace


def test_every_request_has_a_prompt_of_its_own_and_every_run_the_same_ones() -> None:
    prompts = Prompts(128, middle_of(32_000))
    assert prompts[0] == Prompts(128, middle_of(32_000))[0]
    assert prompts[0] != prompts[1]
    assert prompts[0] != Prompts(128, middle_of(32_000), seed=1)[0]
    assert all(4000 <= token < 31_500 for token in prompts[0])
    assert len(prompts[0]) == 128


def test_log_normal_lengths_keep_their_bounds_and_have_the_geometric_mean_as_median() -> None:
    lengths = LogNormal(16, 128)
    drawn = [lengths[index] for index in range(5000)]
    assert min(drawn) >= 16
    assert max(drawn) <= 128
    assert statistics.median(drawn) == pytest.approx(math.sqrt(16 * 128), rel=0.05)
    assert statistics.mean(drawn) > statistics.median(drawn)
    # Twice the deviation to each side: the middle half is within a factor of 1.42.
    quarter, _, three_quarters = statistics.quantiles(drawn, n=4)
    assert three_quarters / quarter == pytest.approx(math.exp(2 * 0.65 * math.log(8) / 4), rel=0.1)


def test_log_normal_lengths_come_again_with_the_seed() -> None:
    first = [LogNormal(16, 128, (7, 1))[index] for index in range(50)]
    assert first == [LogNormal(16, 128, (7, 1))[index] for index in range(50)]
    assert first != [LogNormal(16, 128, (7, 2))[index] for index in range(50)]


def test_a_text_prompt_has_exactly_as_many_characters_as_were_drawn_for_it() -> None:
    lengths = LogNormal(64, 1500)
    prompts = TextPrompts(lengths, seed=3)
    for index in range(200):
        assert len(prompts[index]) == lengths[index]
    assert prompts[0] != prompts[1]
    assert prompts[0] == TextPrompts(lengths, seed=3)[0]
    assert prompts[0] != TextPrompts(lengths, seed=4)[0]


class _Recorder:
    def __init__(self) -> None:
        self.asked: list[tuple[Prompt, int]] = []

    async def vocabulary_size(self) -> int:
        return 100

    async def generate(self, prompt: Prompt, max_tokens: int, trace: Trace) -> None:
        assert not trace.error
        self.asked.append((prompt, max_tokens))

    async def close(self) -> None:
        return


async def test_each_request_asks_for_the_answer_length_that_was_drawn_for_it() -> None:
    target, answers = _Recorder(), LogNormal(16, 128)
    prompts = TextPrompts(LogNormal(64, 1500))
    send = sender(target, prompts, max_tokens=answers, limit_s=5)
    for index in (4, 9):
        await send(index, Trace(0.0))
    assert target.asked == [(prompts[4], answers[4]), (prompts[9], answers[9])]
