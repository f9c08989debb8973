"""OpenAI's own client."""

from __future__ import annotations

import os

import openai
import pydantic
import pytest

MODEL = os.environ["SUITE_MODEL"]
TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "maxLength": 20}},
            "required": ["expression"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
ASK = [{"role": "user", "content": "What is 12 + 7?"}]


@pytest.fixture
def client():
    return openai.OpenAI(max_retries=0)


class City(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    has_river: bool


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=20)
    assert answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream(client):
    parts = list(
        client.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=20, stream=True, stream_options={"include_usage": True}
        )
    )
    assert parts[-1].usage.completion_tokens
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices)


def test_chat_stream_helper(client):
    with client.chat.completions.stream(model=MODEL, messages=ASK, max_tokens=20) as stream:
        kinds = {event.type for event in stream}
        assert {"chunk", "content.delta", "content.done"} <= kinds
        assert stream.get_final_completion().choices[0].message.content


def test_parsed_answer(client):
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Paris as JSON"}],
        response_format=City,
        max_tokens=100,
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_required_tool(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=[TOOL], tool_choice="required", max_tokens=80
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    call = answer.choices[0].message.tool_calls[0]
    after = [
        *ASK,
        answer.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "19"},
    ]
    final = client.chat.completions.create(model=MODEL, messages=after, tools=[TOOL], max_tokens=40)
    assert final.choices[0].message.content


def test_tools_and_a_format(client):
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASK, tools=[TOOL], response_format=City, max_tokens=120
    )
    message = answer.choices[0].message
    assert message.tool_calls or isinstance(message.parsed, City)


OPTIONS = {
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 2,
    "seed": 7,
    "stop": ["\n\n"],
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {"11": -1},
    "logprobs": True,
    "max_completion_tokens": 9,
    "metadata": {"a": "b"},
    "parallel_tool_calls": True,
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "service_tier": "auto",
    "store": False,
    "tool_choice": "none",
    "user": "u",
    "modalities": ["text"],
    "response_format": {"type": "text"},
    "verbosity": "medium",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_chat_option(client, name):
    own = {"max_tokens": 8} | {name: OPTIONS[name]}
    if name in ("parallel_tool_calls", "tool_choice"):
        own["tools"] = [TOOL]
    assert client.chat.completions.create(model=MODEL, messages=ASK, **own).choices


def test_completion_with_echo_and_logprobs(client):
    answer = client.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=1, echo=True, logprobs=1
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert answer.choices[0].text.startswith("Once upon a time")


def test_completion_stream(client):
    parts = list(client.completions.create(model=MODEL, prompt="Once", max_tokens=8, stream=True))
    assert "".join(part.choices[0].text for part in parts if part.choices)


def test_response_and_its_events(client):
    whole = client.responses.create(model=MODEL, input="What is 12 + 7?", max_output_tokens=20, store=False)
    assert whole.output_text
    events = list(
        client.responses.create(model=MODEL, input="Hello", max_output_tokens=20, stream=True, store=False)
    )
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")


def test_response_with_hosted_tools(client):
    tools = [{"type": "web_search"}, {"type": "function", "strict": True, **TOOL["function"]}]
    answer = client.responses.create(model=MODEL, input="What is 12 + 7?", tools=tools, max_output_tokens=60)
    assert answer.output


def test_response_parse(client):
    answer = client.responses.parse(
        model=MODEL, input="Paris as JSON", text_format=City, max_output_tokens=100
    )
    assert isinstance(answer.output_parsed, City)


def test_models(client):
    assert MODEL in {one.id for one in client.models.list()}
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing-of-this-name")


def test_embeddings(client):
    if not os.environ["SUITE_EMBEDDING"]:
        pytest.skip("no embedding model")
    answer = client.embeddings.create(model=os.environ["SUITE_EMBEDDING"], input=["a", "b"])
    assert len(answer.data) == 2


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ASK, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(api_key="wrong", max_retries=0).models.list()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a b " * 60_000}])
    assert caught.value.code == "context_length_exceeded"


def test_what_a_cut_answer_leaves_is_taken_back(client):
    cut = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"expre'}}
    history = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [cut]},
        {"role": "tool", "tool_call_id": "c1", "content": "bad call"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "Hello"},
    ]
    assert client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL], max_tokens=8).choices
