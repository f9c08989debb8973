"""What the demo model learns of tools: definitions, calls, results and answers."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from harness.chat_template import render

from inferflux.common.llama.vocab import Vocab
from tools.demo_model.chat_data import KINDS, conversation_with_tools, conversations, held_out
from tools.demo_model.chatml import pieces, prompt
from tools.demo_model.sample import Message, Reply, Sample
from tools.demo_model.scoring import is_right
from tools.demo_model.tool_kinds import TOOL_WRITERS
from tools.demo_model.tool_tasks import NOT_HELPED, draw_task
from tools.demo_model.toolbox import NO_TOOLS, Signature, Toolbox, draw_toolbox

CALLING = ("calculator", "weather")


def some(kind: str, count: int = 200) -> list[Sample]:
    rng = Random(7)
    return [TOOL_WRITERS[kind](rng) for _ in range(count)]


def trained(count: int = 200) -> list[Sample]:
    rng = Random(8)
    return [conversation_with_tools(rng) for _ in range(count)]


def definitions(tools: Toolbox) -> dict[str, dict[str, Any]]:
    return {function["name"]: function for function in map(json.loads, tools.lines)}


def as_request(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """The messages as a client of OpenAI's API sends them."""
    return [
        {
            "role": message.role,
            "content": message.content,
            "tool_calls": [{"type": "function", "function": json.loads(call)} for call in message.calls],
        }
        for message in messages
    ]


def test_a_prompt_is_what_the_template_renders() -> None:
    plain = list(islice(conversations(seed=3, tools_share=0.0), 100))
    for sample in (*plain, *trained()):
        tools = [{"type": "function", "function": json.loads(line)} for line in sample.tools.lines]
        # The template spaces definitions in its own way.
        spaced = Toolbox(tuple(json.dumps(tool["function"]) for tool in tools)) if tools else NO_TOOLS
        assert prompt(sample.prompt, spaced) == render(as_request(sample.prompt), tools)


def test_the_pieces_of_a_prompt_are_its_tokens() -> None:
    vocab = Vocab.load(Path(__file__).parents[3] / "models" / "inferflux-demo.gguf")

    def ids(text: str) -> list[int]:
        return vocab.tokenize(text.encode(), add_special=False, parse_special=True)

    for sample in trained(50):
        cut = list(pieces(sample.messages, sample.tools))
        joined = "".join(piece.head + piece.body + piece.tail for piece in cut)
        assert [
            i for piece in cut for part in (piece.head, piece.body, piece.tail) for i in ids(part)
        ] == ids(joined)
    vocab.close()


def test_only_the_assistant_s_words_are_learned() -> None:
    for sample in trained():
        learned = [piece.body for piece in pieces(sample.messages, sample.tools) if piece.learn]
        assert learned == [f"{m.text}<|im_end|>" for m in sample.messages if m.role == "assistant"]


def test_calls_are_of_tools_that_there_are() -> None:
    called = 0
    for sample in (*trained(), *(s for kind in CALLING for s in some(kind))):
        known = definitions(sample.tools)
        for call in (json.loads(text) for message in sample.messages for text in message.calls):
            fields = known[call["name"]]["parameters"]["properties"]
            assert set(call["arguments"]) == set(fields)
            called += 1
    assert called > 400


def test_every_call_has_its_result_and_an_answer_after_them() -> None:
    for sample in trained():
        for i, message in enumerate(sample.messages):
            results = [m.role for m in sample.messages[i + 1 : i + 1 + len(message.calls)]]
            assert results == ["tool"] * len(message.calls)
            if message.calls:
                assert sample.messages[i + 1 + len(message.calls)].role == "assistant"


def test_the_expression_has_the_numbers_of_the_question() -> None:
    for sample in some("calculator"):
        (expression,) = json.loads(sample.messages[-1].calls[0])["arguments"].values()
        assert re.findall(r"\d+", expression) == re.findall(r"\d+", sample.question)


def test_the_city_stands_in_the_question() -> None:
    for sample in some("weather"):
        (city,) = json.loads(sample.messages[-1].calls[0])["arguments"].values()
        assert city.lower() in sample.question.lower()


def test_answers_hold_what_the_tool_said() -> None:
    for sample in some("tool_result", 400):
        told = sample.messages[-2].content
        if sample.answer == NOT_HELPED:
            assert re.search("error|failed", told.lower())
            continue
        value = re.findall(r"-?\d+(?:\.\d+)?", sample.answer)
        assert all(number in told or number in sample.messages[-3].text for number in value)
        if sample.answer.startswith("The weather"):
            sky = re.search(r" is ([a-z ]+)[.,]", sample.answer)
            assert sky
            assert sky[1] in told


def test_questions_that_no_tool_is_for_are_answered_without_a_call() -> None:
    for sample in some("no_call"):
        assert sample.tools.lines
        assert not any(message.calls for message in sample.messages)
        if sample.tools.calculator:
            assert sample.topic != "arithmetic"


def test_a_sum_is_held_out_with_and_without_a_calculator() -> None:
    asked = {
        tuple(sorted(re.findall(r"\d+", sample.question)))
        for sample in held_out("arithmetic", 100)
        if "+" in sample.answer
    }
    for sample in trained(500):
        for call in (json.loads(text) for message in sample.messages for text in message.calls):
            (value,) = call["arguments"].values()
            if re.fullmatch(r"\d+ \+ \d+", value):
                assert tuple(sorted(value.split(" + "))) not in asked


@pytest.mark.parametrize("kind", CALLING)
@pytest.mark.parametrize("change", ["{}", "{}\n{}", "I think {}", "{} ", "<tool_call>\n{{}}\n</tool_call>"])
def test_a_call_is_right_only_by_itself(kind: str, change: str) -> None:
    sample = some(kind, 1)[0]
    text = change.format(*[sample.answer] * change.count("{}"))
    assert is_right(sample, Reply(text, 50, ended=True)) == (text.strip() == sample.answer)


def test_a_call_is_compared_as_json() -> None:
    sample = some("calculator", 1)[0]
    compact = json.dumps(json.loads(sample.messages[-1].calls[0]), separators=(",", ":"))
    assert is_right(sample, Reply(f"<tool_call>\n{compact}\n</tool_call>", 50, ended=True))
    assert not is_right(sample, Reply(f"<tool_call>\n{compact[:-1]}\n</tool_call>", 50, ended=True))


def test_a_task_needs_a_tool_that_it_can_call() -> None:
    with pytest.raises(ValueError, match="no tool"):
        draw_task(Random(1), NO_TOOLS, "train")


def test_definitions_are_json_with_the_names_that_are_called() -> None:
    rng = Random(2)
    for tools in (draw_toolbox(rng) for _ in range(300)):
        known = definitions(tools)
        assert len(known) == len(tools.lines) > 0
        signatures: list[Signature] = [s for s in (tools.calculator, tools.weather) if s]
        for signature in signatures:
            assert list(known[signature.name]["parameters"]["properties"]) == [signature.argument]


def test_every_kind_with_tools_can_be_measured() -> None:
    assert set(TOOL_WRITERS) < set(KINDS)
    for kind in TOOL_WRITERS:
        assert all(sample.tools.lines for sample in held_out(kind, 20))
