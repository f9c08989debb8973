"""Pydantic AI: agents with tools and typed results."""

from __future__ import annotations

import os

import pydantic
import pytest
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["SUITE_KEY"])
SETTINGS = {"max_tokens": 150, "temperature": 0}


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel], ids=["chat", "responses"])
def model(request):
    return request.param(os.environ["SUITE_MODEL"], provider=PROVIDER)


def test_text(model):
    assert Agent(model, model_settings=SETTINGS).run_sync("Hello").output


@pytest.mark.parametrize("output", [ToolOutput(Person), NativeOutput(Person)], ids=["tool", "native"])
def test_typed(model, output):
    made = Agent(model, output_type=output, model_settings=SETTINGS).run_sync("Name: Paul, age: 9. As JSON.")
    assert isinstance(made.output, Person)
