"""OpenAI's agents' library, over chat completions and responses."""

from __future__ import annotations

import os

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)

CLIENT = openai.AsyncOpenAI(max_retries=0)


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel], ids=["chat", "responses"])
def model(request):
    return request.param(model=os.environ["SUITE_MODEL"], openai_client=openai.AsyncOpenAI(max_retries=0))


def test_text(model):
    agent = Agent(name="a", model=model, model_settings=ModelSettings(max_tokens=20))
    assert Runner.run_sync(agent, "Hello").final_output


def test_tool(model):
    asked = []

    @function_tool
    def calculator(expression: str) -> str:
        """Computes an arithmetic expression."""
        asked.append(expression)
        return "19"

    settings = ModelSettings(max_tokens=80, tool_choice="required")
    agent = Agent(name="a", model=model, tools=[calculator], model_settings=settings)
    assert Runner.run_sync(agent, "What is 12 + 7?", max_turns=4).final_output is not None
    assert asked
