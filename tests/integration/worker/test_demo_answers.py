"""The published demo model does what the pages show of it: greedily, by the engine, and surely."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from harness.serving import Served, load
from harness.sure import check_sure, prompt_tokens
from harness.worker import batch_item

from inferflux.worker.engine.llama.native import Backend

SUM = {"name": "calculator", "arguments": {"expression": "12 + 7"}}
WEATHER = {"name": "weather", "arguments": {"city": "Paris"}}


def function(name: str, description: str, argument: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


CALCULATOR = function("calculator", "Computes an arithmetic expression.", "expression")
TOOLS = [CALCULATOR, function("weather", "The weather of a city.", "city")]


@functools.cache
def demo() -> Backend:
    return load()


def asked(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    """What the model says, of which it is sure, to the end that it chooses itself."""
    demo()._main.clear()
    served = Served(demo(), has_prefix_cache=False)
    item = batch_item("a", prompt=prompt_tokens(messages, tools), max_tokens=100, logprobs=2)
    item.request.params.ignore_eos = False
    served.run(item)
    check_sure(served.chunks)
    assert len(served.tokens["a"]) < 100
    return "".join(chunk.text for chunk in served.chunks)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is 12 + 7?", "12 + 7 = 19"),
        ("How much is 12 + 7?", "12 + 7 = 19"),
        ("12 + 7", "12 + 7 = 19"),
        ("12+7", "12 + 7 = 19"),
        ("What is 2 + 2?", "2 + 2 = 4"),
        ("What is 20 - 8?", "20 - 8 = 12"),
        ("What is 3 * 4?", "3 * 4 = 12"),
        ("What is the capital of France?", "Paris is the capital of France."),
        ("Hello", "Hello! How can I help you today?"),
    ],
)
def test_it_answers_what_the_pages_ask(question: str, expected: str) -> None:
    assert answer([asked(question)]) == expected


@pytest.mark.parametrize("tools", [[CALCULATOR], TOOLS, TOOLS[::-1]], ids=["one", "two", "turned"])
def test_it_calls_the_tool_for_a_sum_and_answers_by_its_result(tools: list[dict[str, Any]]) -> None:
    check_call_and_answer("What is 12 + 7?", SUM, {"result": 19}, "12 + 7 = 19", tools)


def test_it_calls_the_tool_for_the_weather_and_answers_by_its_result() -> None:
    result = {"temperature": 21, "condition": "sunny"}
    expected = "The weather in Paris is sunny, 21 degrees."
    check_call_and_answer("What is the weather in Paris?", WEATHER, result, expected, TOOLS)


def test_it_calls_no_tool_where_none_helps() -> None:
    assert answer([asked("Hello")], TOOLS) == "Hello! How can I help you today?"


def check_call_and_answer(
    question: str, call: dict[str, Any], result: dict[str, Any], expected: str, tools: list[dict[str, Any]]
) -> None:
    assert answer([asked(question)], tools) == f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    called = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
    told = {"role": "tool", "content": json.dumps(result)}
    assert answer([asked(question), called, told], tools) == expected
