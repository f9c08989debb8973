"""Ollama's own client."""

from __future__ import annotations

import os

import ollama
import pytest

MODEL = os.environ["SUITE_MODEL"]
ASK = [{"role": "user", "content": "What is 12 + 7?"}]


@pytest.fixture
def client():
    return ollama.Client(
        host=os.environ["SUITE_URL"], headers={"Authorization": f"Bearer {os.environ['SUITE_KEY']}"}
    )


def test_chat(client):
    answer = client.chat(model=MODEL, messages=ASK, options={"num_predict": 20})
    assert answer.message.content
    assert answer.done


def test_chat_stream(client):
    parts = list(client.chat(model=MODEL, messages=ASK, stream=True, options={"num_predict": 20}))
    assert parts[-1].done
    assert "".join(part.message.content or "" for part in parts)


def test_chat_format(client):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answer = client.chat(model=MODEL, messages=ASK, format=schema, options={"num_predict": 60})
    assert answer.message.content.startswith("{")


def test_chat_tools(client):
    def calculator(expression: str) -> str:
        """Computes an arithmetic expression.

        Args:
            expression: what to compute
        """
        return expression

    answer = client.chat(model=MODEL, messages=ASK, tools=[calculator], options={"num_predict": 60})
    assert answer.message.tool_calls or answer.message.content


def test_generate(client):
    assert client.generate(model=MODEL, prompt="Once upon a time", options={"num_predict": 8}).response
    parts = list(client.generate(model=MODEL, prompt="Once", stream=True, options={"num_predict": 8}))
    assert parts[-1].done


def test_models(client):
    assert any(one.model.startswith(MODEL) for one in client.list().models)
    assert client.show(MODEL).details


def test_embed(client):
    if not os.environ["SUITE_EMBEDDING"]:
        pytest.skip("no embedding model")
    assert len(client.embed(model=os.environ["SUITE_EMBEDDING"], input=["a", "b"]).embeddings) == 2


def test_unknown_model(client):
    with pytest.raises(ollama.ResponseError):
        client.show("nothing-of-this-name")
