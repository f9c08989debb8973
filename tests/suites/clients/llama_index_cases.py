"""LlamaIndex's client for servers like OpenAI's."""

from __future__ import annotations

import os

import pydantic
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=20)
    age: int


@pytest.fixture
def llm():
    return OpenAILike(
        model=os.environ["SUITE_MODEL"],
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["SUITE_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=2048,
        max_tokens=100,
    )


def test_chat(llm):
    assert llm.chat([ChatMessage(role="user", content="Hello")]).message.content
    assert "".join(part.delta or "" for part in llm.stream_chat([ChatMessage(role="user", content="Hello")]))


def test_complete(llm):
    assert llm.complete("Once upon a time").text


def test_typed(llm):
    made = llm.as_structured_llm(Person).chat([ChatMessage(role="user", content="Paul is 9. As JSON.")])
    assert isinstance(made.raw, Person)
