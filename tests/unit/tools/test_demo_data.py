import json
import operator
import re
from itertools import islice, pairwise
from random import Random

import pytest

from tools.demo_model.chat_data import KINDS, MIX, conversations, held_out
from tools.demo_model.kinds import WRITERS, draw
from tools.demo_model.sample import Reply, Sample
from tools.demo_model.scoring import is_right
from tools.demo_model.toolbox import NO_TOOLS

CALCULATE = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def some(kind: str, count: int = 200) -> list[Sample]:
    rng = Random(7)
    return [KINDS[kind](rng) for _ in range(count)]


def said(sample: Sample, text: str | None = None, *, ended: bool = True) -> Reply:
    return Reply(sample.answer if text is None else text, tokens=110, ended=ended)


@pytest.mark.parametrize("kind", sorted(WRITERS))
def test_a_sample_asks_and_answers_in_turn(kind: str) -> None:
    for sample in some(kind):
        assert sample.tools is NO_TOOLS
        roles = [message.role for message in sample.messages]
        turns = roles[1:] if roles[0] == "system" else roles
        assert turns == ["user", "assistant"] * (len(turns) // 2)
        assert all(message.content.strip() == message.content != "" for message in sample.messages)
        assert sample.kind == kind


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_wanted_answer_scores_as_right_and_another_as_wrong(kind: str) -> None:
    for sample in some(kind, 50):
        assert is_right(sample, said(sample))
        assert not is_right(sample, said(sample, ended=False))
        assert not is_right(sample, said(sample, "I do not know."))


def test_sums_and_differences_are_right() -> None:
    for sample in some("arithmetic"):
        left, sign, right, result = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (\d+)", sample.answer).groups()  # type: ignore[union-attr]
        assert int(result) == CALCULATE[sign](int(left), int(right))


def test_counting_goes_by_one_between_the_numbers_asked_for() -> None:
    for sample in some("count"):
        *given, last = (int(n) for n in re.findall(r"\d+", sample.question))
        first = given[0] if given else 1
        numbers = [int(n) for n in re.findall(r"\d+", sample.answer)]
        assert (numbers[0], numbers[-1]) == (first, last)
        assert {b - a for a, b in pairwise(numbers)} == {1 if last > first else -1}


def test_repeated_text_stands_in_the_question() -> None:
    assert all(sample.answer in sample.question for sample in some("repeat"))


def test_json_answers_parse_and_hold_what_was_given() -> None:
    for sample in some("json"):
        value = json.loads(sample.answer)
        given = value if isinstance(value, list) else [v for k, v in value.items() if k != "capital"]
        assert all(str(item) in sample.question for item in given)


def test_stories_speak_of_what_was_asked_for() -> None:
    for sample in some("story"):
        assert sample.mentions
        assert all(word in sample.question and word in sample.answer for word in sample.mentions)


def test_recalled_facts_were_said_before() -> None:
    for sample in some("recall"):
        fact = sample.answer.rstrip(".").split()[-1]
        assert any(fact in message.content for message in sample.messages[:-1])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_held_out_samples_are_different_and_repeatable(kind: str) -> None:
    samples = held_out(kind, 60)
    assert samples == held_out(kind, 60)
    assert len({sample.messages for sample in samples}) == 60
    assert {sample.split for sample in samples} == {"held_out"}


def test_no_held_out_question_is_trained_on() -> None:
    trained = list(islice(conversations(seed=3, long_share=0.05), 5_000))
    assert {sample.split for sample in trained} == {"train"}
    asked = {
        message.content.lower().rstrip(".?!")
        for s in trained
        for message in s.messages
        if message.role == "user"
    }
    for kind in ("arithmetic", "count", "repeat"):
        assert not asked & {sample.question.lower().rstrip(".?!") for sample in held_out(kind, 60)}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_held_out_key_is_drawn_for_training(kind: str) -> None:
    rng = Random(11)
    keys = {sample.key for sample in held_out(kind, 60)}
    assert not keys & {draw(rng, KINDS[kind], "train").key for _ in range(2_000)}


def test_every_kind_is_in_the_mix() -> None:
    assert set(MIX) == set(WRITERS)
    drawn = {sample.kind for sample in islice(conversations(seed=5), 500)}
    assert drawn == {*WRITERS, "tools"}
