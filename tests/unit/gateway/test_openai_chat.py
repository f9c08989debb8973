"""Bodies of chat completions to requests, and token chunks to OpenAI's messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from inferflux.common.calls.calls import CallContext
from inferflux.common.contract.errors import InferFluxError, InvalidArgument
from inferflux.gateway.http.errors.errors import in_words_of, path_of
from inferflux.gateway.http.openai import chat
from inferflux.gateway.http.openai.answers import Head
from inferflux.gateway.http.openai.bodies import ChatBody, StreamOptions
from inferflux.gateway.http.openai.params import priority_of, tier_of
from inferflux.gateway.http.paths.answering import of_choice_context
from inferflux.gateway.http.paths.reading import parse
from inferflux.gateway.request.tools import tool_use_of
from inferflux.gateway.tokenizer.template_messages import template_tools
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

HEAD = Head("chatcmpl-1", "demo", 7)


def body(**fields: Any) -> ChatBody:
    made = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]} | fields
    return parse(ChatBody, json.dumps(made).encode())


def request(**fields: Any) -> inference_pb2.ChatRequest:
    return chat.to_request(body(**fields))


def refusal(**fields: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        request(**fields)
    return caught.value


def tokens(*ids: int, text: str = "", **fields: Any) -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(token_ids=ids, text=text, **fields)


def end(reason: generation_pb2.FinishReason.ValueType = generation_pb2.FINISH_REASON_STOP) -> Any:
    usage = generation_pb2.Usage(
        prompt_tokens=10, cached_prompt_tokens=4, completion_tokens=3, reasoning_tokens=1
    )
    return tokens_pb2.Finished(reason=reason, usage=usage)


def test_parts_of_a_message_are_parts_for_the_template() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (message,) = request(messages=[{"role": "user", "content": parts}]).messages
    assert [part.text for part in message.parts] == ["a", "b"]
    (message,) = request(messages=[{"role": "user", "content": parts[:1]}]).messages
    assert (message.content, len(message.parts)) == ("a", 0)


def test_switches_of_the_template_are_passed_on() -> None:
    made = request(chat_template_kwargs={"a": [1]}, enable_thinking=False, reasoning_effort="low")
    assert json.loads(made.chat_template_kwargs) == {"a": [1], "enable_thinking": False}
    assert made.reasoning_effort == "low"
    assert not request().chat_template_kwargs


ANSWERED = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hel"}]


def test_a_last_message_of_the_assistant_is_begun() -> None:
    assert request(messages=ANSWERED).continue_final_message
    assert request(messages=ANSWERED, continue_final_message="content").continue_final_message
    assert not request(messages=ANSWERED, continue_final_message=False).continue_final_message
    assert not request(messages=ANSWERED, add_generation_prompt=True).continue_final_message
    assert not request(messages=ANSWERED[:1]).continue_final_message
    called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert not request(
        messages=[*ANSWERED, {"role": "assistant", "tool_calls": [called]}]
    ).continue_final_message
    ended = request(messages=ANSWERED, continue_final_message=False, add_generation_prompt=False)
    assert ended.skip_generation_prompt
    both = refusal(messages=ANSWERED, continue_final_message=True, add_generation_prompt=True)
    assert both.field == "continue_final_message"


def test_what_is_not_given_is_left_to_the_defaults() -> None:
    made = request(temperature=None)
    assert made.params == generation_pb2.GenerationParams(sampling=generation_pb2.SamplingParams())
    assert made.priority == 0


def test_the_newer_limit_wins() -> None:
    assert request(max_tokens=5).params.max_tokens == 5
    assert request(max_tokens=5, max_completion_tokens=6).params.max_tokens == 6


def test_our_own_fields_have_grpcs_names() -> None:
    made = request(
        top_k=3, min_p=0.5, ignore_eos=True, stop_token_ids=[1], skip_answer_cache=True, priority=9
    )
    assert (made.params.sampling.top_k, made.params.sampling.min_p) == (3, 0.5)
    assert (made.params.ignore_eos, list(made.params.stop_token_ids)) == (True, [1])
    assert (made.skip_answer_cache, made.priority) == (True, 9)


def test_the_source_of_drafts_has_a_name() -> None:
    assert request(speculation="ngram").params.speculation == generation_pb2.SPECULATION_NGRAM
    assert request(speculation="off").params.speculation == generation_pb2.SPECULATION_OFF
    assert request().params.speculation == generation_pb2.SPECULATION_UNSPECIFIED
    assert refusal(speculation="guess").field == "speculation"


@pytest.mark.parametrize("name", ["max_reasoning_tokens", "thinking_budget_tokens", "thinking_token_budget"])
def test_reasoning_is_limited_under_every_name_that_servers_have_for_it(name: str) -> None:
    assert request(**{name: 0}).params.max_reasoning_tokens == 0
    assert request(**{name: 0}).params.HasField("max_reasoning_tokens")
    assert not request(**{name: -1}).params.HasField("max_reasoning_tokens")
    assert refusal(**{name: -2}).field == name


def test_what_was_drafted_is_in_the_last_chunk_and_in_the_answer() -> None:
    stream = chat.ChatStream(HEAD, n=2, has_logprobs=False)
    answer = chat.ChatAnswer(HEAD, n=2, has_logprobs=False)
    finished = end()
    finished.timings.draft_n, finished.timings.draft_n_accepted = 8, 5
    for index in (0, 1):
        chunk = tokens(1, text="a", finished=finished)
        answer.add(index, chunk)
        *_, last = stream.messages(index, chunk)
        assert last["timings"] == {"draft_n": 8, "draft_n_accepted": 5}
    assert answer.to_json()["timings"] == {"draft_n": 16, "draft_n_accepted": 10}
    plain = chat.ChatAnswer(HEAD, n=1, has_logprobs=False)
    plain.add(0, tokens(1, text="a", finished=end()))
    assert "timings" not in plain.to_json()


def test_samplers_have_the_names_of_llamas_server() -> None:
    given: dict[str, Any] = {
        "typical_p": 0.5,
        "xtc_probability": 0.25,
        "xtc_threshold": 0.125,
        "dry_multiplier": 0.5,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 9,
        "dynatemp_range": 0.75,
        "dynatemp_exponent": 1.5,
        "top_n_sigma": -1.0,
    }
    sampling = request(**given, dry_sequence_breakers=["\n", "x"]).params.sampling
    assert {name: getattr(sampling, name) for name in given} == given
    assert list(sampling.dry_sequence_breakers.texts) == ["\n", "x"]
    assert not request().params.sampling.HasField("dry_sequence_breakers")
    assert request(dry_sequence_breakers=[]).params.sampling.HasField("dry_sequence_breakers")


def test_a_negative_seed_is_a_seed_but_minus_one_is_none() -> None:
    assert request(seed=-2).params.sampling.seed == 2**64 - 2
    assert not request(seed=-1).params.sampling.HasField("seed")


@pytest.mark.parametrize(("tier", "priority"), [("flex", -5), ("auto", 0), ("default", 0), ("priority", 5)])
def test_a_tier_is_a_priority_by_name(tier: str, priority: int) -> None:
    assert priority_of(body(service_tier=tier)) == priority
    assert priority_of(body(service_tier=tier, priority=7)) == 7
    assert tier_of(body(service_tier=tier)) == ("default" if tier == "auto" else tier)


def test_log_probabilities_are_asked_for_with_and_without_alternatives() -> None:
    assert not request().params.sampling.HasField("logprobs")
    assert request(logprobs=True).params.sampling.logprobs == 0
    assert request(logprobs=True).params.sampling.HasField("logprobs")
    assert request(logprobs=True, top_logprobs=4).params.sampling.logprobs == 4


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "file"}]}]},
            "messages[0].content[0].type",
        ),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"service_tier": "gold"}, "service_tier"),
    ],
)
def test_a_value_that_is_not_served_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    error = refusal(**fields)
    assert (error.field, error.reason) == (field, "UNSUPPORTED_VALUE")


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"response_format": None, "tools": None, "n": None, "stop": None, "service_tier": None},
    ],
)
def test_values_that_ask_for_nothing_pass(fields: dict[str, Any]) -> None:
    assert request(**fields).model == "demo"


def test_a_message_needs_content() -> None:
    assert refusal(messages=[{"role": "user"}]).field == "messages[0].content"


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", ""),
        (b"[]", ""),
        (b"\xff", ""),
        (b'{"model": "a", "messages": "b"}', "messages"),
        (
            b'{"model": "a", "messages": [{"role": "user", "content": [{"type": 1}]}]}',
            "messages[0].content[0].type",
        ),
        (b'{"model": "a", "messages": [], "temperature": NaN}', "temperature"),
        (b'{"model": "a", "messages": [], "n": 129}', "n"),
        (b'{"model": "a", "messages": [], "stream_options": 1}', "stream_options"),
        (b'{"model": "\\ud800", "messages": []}', ""),
        (b"[" * 100_000, ""),
    ],
)
def test_a_body_of_another_shape_names_its_field(data: bytes, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(ChatBody, data)
    assert caught.value.field == field
    assert caught.value.message


def test_alternatives_of_a_type_are_no_part_of_a_fields_name() -> None:
    assert path_of(("messages", 0, "content", "list[Part]", 1, "text")) == "messages[0].content[1].text"
    assert path_of(("stop", "str")) == "stop"


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ("params.sampling.top_p", "top_p"),
        ("params.sampling.logit_bias[5]", "logit_bias[5]"),
        ("params.max_tokens", "max_completion_tokens"),
        ("params.sampling.logprobs", "top_logprobs"),
        ("messages[0].role", "messages[0].role"),
    ],
)
def test_inner_fields_have_the_clients_names(inner: str, outer: str) -> None:
    names = chat.field_names(body(max_completion_tokens=1))
    error = in_words_of(InvalidArgument("it is wrong", field=inner, reason="R"), names)
    assert isinstance(error, InvalidArgument)
    assert (error.field, error.reason) == (outer, "R")


@pytest.mark.parametrize("name", ["name", "arguments"])
def test_a_call_of_a_message_is_named_as_the_client_wrote_it(name: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f g"}}
    names = chat.field_names(body(messages=[{"role": "assistant", "tool_calls": [call]}]))
    inner = f"messages[0].tool_calls[0].{name}"
    error = in_words_of(InvalidArgument(f"{inner}: bad", field=inner), names)
    assert isinstance(error, InvalidArgument)
    assert error.field == f"messages[0].tool_calls[0].function.{name}"
    assert error.message == f"{error.field}: bad"


@pytest.mark.parametrize(
    ("fields", "inner", "field"),
    [
        ({"response_format": {"type": "json_object"}}, "params.constraint.json_object", "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "params.constraint.regex", "structured_outputs.regex"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "tools"),
    ],
)
def test_a_constraint_that_fails_later_is_the_field_that_asked_for_it(
    fields: dict[str, Any], inner: str, field: str
) -> None:
    failed = InvalidArgument("the constraint: too much", field=inner, reason="CONSTRAINT_FAILED")
    error = in_words_of(failed, chat.field_names(body(**fields)))
    assert isinstance(error, InvalidArgument)
    assert error.field == field


def test_a_tool_without_a_name_is_named_as_a_chat_has_it() -> None:
    with pytest.raises(InvalidArgument) as caught:
        request(tools=[{"type": "function"}])
    assert caught.value.field == "tools[0].function.name"


NO_ARGUMENTS = '{"type":"object","properties":{},"additionalProperties":false}'


@pytest.mark.parametrize("function", [{"name": "f"}, {"name": "f", "parameters": {}}])
def test_a_function_without_parameters_takes_no_arguments(function: dict[str, Any]) -> None:
    asked = request(tools=[{"type": "function", "function": function}])
    assert tool_use_of(asked).functions[0].parameters == NO_ARGUMENTS
    asked.tools[0].parameters = "{}"
    assert tool_use_of(asked).functions[0].parameters == NO_ARGUMENTS
    assert template_tools(asked.tools)[0]["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("more", "is_none"),
    [
        ({}, True),
        ({"title": "fArguments", "required": [], "$schema": "http://json-schema.org/draft-07/schema#"}, True),
        ({"additionalProperties": {"type": "string"}}, False),
        ({"required": ["a"]}, False),
        ({"patternProperties": {"^a$": {}}}, False),
    ],
)
def test_a_function_whose_list_of_properties_is_empty_takes_no_arguments(
    more: dict[str, Any], is_none: bool
) -> None:
    schema = {"type": "object", "properties": {}, **more}
    (made,) = tool_use_of(
        request(tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}])
    ).functions
    assert (made.parameters == NO_ARGUMENTS) is is_none


def test_a_schema_that_was_seen_before_is_refused_in_its_own_place() -> None:
    bad = {"type": "object", "properties": {"x": {"uniqueItems": True}}}
    strict = {"name": "g", "parameters": bad, "strict": True}
    functions = [{"name": "f", "parameters": bad}, strict]
    for first in (0, 1):
        tools = [{"type": "function", "function": function} for function in functions[first:]]
        with pytest.raises(InvalidArgument) as refused:
            tool_use_of(request(tools=tools))
        assert refused.value.field == f"tools[{1 - first}].parameters"
        assert refused.value.message.startswith(f"{refused.value.field}: ")


def test_a_function_of_any_object_takes_any_object() -> None:
    asked = request(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    assert tool_use_of(asked).functions[0].parameters == '{"type":"object"}'


def test_every_type_that_a_field_may_have_is_told() -> None:
    with pytest.raises(InvalidArgument) as caught:
        body(stop=5)
    assert caught.value.message == "stop: input should be a valid string or a valid array"
    with pytest.raises(InvalidArgument, match="the body is empty"):
        parse(ChatBody, b"")


def test_an_error_without_a_field_stays_as_it_is() -> None:
    error = InferFluxError("x")
    assert in_words_of(error, {}) is error


def test_a_stream_begins_with_the_role_and_ends_with_the_reason() -> None:
    stream = chat.ChatStream(HEAD, n=1, has_logprobs=False)
    assert stream.messages(0, tokens_pb2.TokenChunk(started=tokens_pb2.Started())) == []
    first = stream.messages(0, tokens(1, text="a"))
    assert [m["choices"][0]["delta"] for m in first] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
    ]
    assert stream.messages(0, tokens(2)) == [], "a token without text says nothing yet"
    last = stream.messages(0, tokens(3, text="b", finished=end(generation_pb2.FINISH_REASON_LENGTH)))
    assert [m["choices"][0]["delta"] for m in last] == [{"content": "b"}, {}]
    assert [m["choices"][0]["finish_reason"] for m in last] == [None, "length"]
    assert stream.last() == []
    assert all("usage" not in message for message in first + last)


def test_an_empty_answer_has_a_role_and_a_reason() -> None:
    stream = chat.ChatStream(HEAD, n=1, has_logprobs=False)
    messages = stream.messages(0, tokens(finished=end()))
    assert [m["choices"][0]["delta"] for m in messages] == [{"role": "assistant", "content": ""}, {}]


def test_cached_tokens_are_in_the_usage() -> None:
    stream = chat.ChatStream(HEAD, n=2, options=StreamOptions(include_usage=True), has_logprobs=False)
    messages = [m for i in (0, 1) for m in stream.messages(i, tokens(1, text="a", finished=end()))]
    assert all(message["usage"] is None for message in messages)
    (last,) = stream.last()
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 6,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


def logprob(text: str, *top: str) -> tokens_pb2.TokenLogprobs:
    return tokens_pb2.TokenLogprobs(
        chosen=tokens_pb2.TokenLogprob(text=text, logprob=-1.0),
        top=[tokens_pb2.TokenLogprob(text=other, logprob=-2.0) for other in top],
    )


def test_bytes_of_a_token_that_is_no_whole_character_are_not_made_up() -> None:
    chunk = tokens(1, logprobs=[logprob("\ufffd", "é")])
    (entry,) = chat.logprobs_of(chunk)["content"]
    assert entry["bytes"] is None
    chunk.logprobs[0].chosen.piece = b"\xe2\x82"
    (entry,) = chat.logprobs_of(chunk)["content"]
    assert (entry["token"], entry["bytes"]) == ("bytes:\\xe2\\x82", [0xE2, 0x82])
    assert entry["top_logprobs"][0]["bytes"] == [0xC3, 0xA9]


def test_the_token_that_ends_the_text_has_no_log_probability() -> None:
    answer = chat.ChatAnswer(HEAD, n=1, has_logprobs=True)
    answer.add(0, tokens(1, 2, text="a", logprobs=[logprob("a"), logprob("")], finished=end()))
    choice = answer.to_json()["choices"][0]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["a"]


def test_choices_have_request_ids_of_their_own() -> None:
    made = [of_choice_context(CallContext("a"), i, first=i - i % 2) for i in range(4)]
    assert [each.request_id for each in made] == ["a", "a-1", "a-2", "a-3"]
    assert [each.same_prompt_as for each in made] == ["", "a", "", "a-2"]
    assert [each.choice for each in made] == [0, 1, 0, 1]
    with pytest.raises(InvalidArgument, match="at most 60"):
        of_choice_context(CallContext("a" * 63), 1, first=0)


@pytest.mark.parametrize(
    "data",
    [
        b'{"model": "a", "messages": [' + b"1," * 500_000 + b"1]}",
        b'{"model": "a", "messages": [], "stop": [' + b"1," * 500_000 + b"1]}",
        b'{"model": "a", "messages": [], "logit_bias": {' + b'"a":"b",' * 200_000 + b'"1":"b"}}',
    ],
    ids=["messages", "stop", "logit_bias"],
)
def test_a_million_wrong_items_cost_one_error(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        chat.to_request(parse(ChatBody, data))
    with pytest.raises(ValidationError) as caught:
        ChatBody.model_validate_json(data.replace(b'"messages": []', b'"messages": 1'))
    assert caught.value.error_count() < 4


@pytest.mark.parametrize("bias", [True, "1", None, [1], 1e300, {}])
def test_a_bias_is_a_number(bias: object) -> None:
    assert refusal(logit_bias={"1": bias}).field == "logit_bias"


def test_the_newer_roles_pass() -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "tool", "content": "rain", "tool_call_id": "call_1", "name": "weather"},
    ]
    made = request(messages=messages).messages
    assert [message.role for message in made] == ["developer", "tool"]
    assert (made[1].tool_call_id, made[1].name) == ("call_1", "weather")


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"json_schema": json.dumps(SCHEMA)},
        ),
        ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": json.dumps(SCHEMA)}),
        ({"structured_outputs": {"json": "{}"}}, {"json_schema": "{}"}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"grammar": "root ::= x"}}, {"gbnf": "root ::= x"}),
        ({"structured_outputs": {"lark": "start: x"}}, {"lark": "start: x"}),
    ],
)
def test_a_format_is_a_constraint(fields: dict[str, Any], constraint: dict[str, Any]) -> None:
    made = request(**fields).params.constraint
    assert made == generation_pb2.StructuredConstraint(**constraint)


def test_choices_of_an_answer_are_a_constraint() -> None:
    made = request(structured_outputs={"choice": ["yes", "no"]}).params.constraint
    assert list(made.choice.texts) == ["yes", "no"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {}}, "response_format.type"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "lark": "b"}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
    ],
)
def test_a_format_that_says_nothing_or_too_much_is_refused(fields: dict[str, Any], field: str) -> None:
    assert refusal(**fields).field == field


@pytest.mark.parametrize(
    ("fields", "inner", "outer"),
    [
        (
            {"response_format": {"type": "json_object"}},
            "params.constraint.json_schema.properties",
            "response_format.json_schema.schema.properties",
        ),
        ({"structured_outputs": {"regex": "a"}}, "params.constraint.regex", "structured_outputs.regex"),
        (
            {"structured_outputs": {"choice": ["a"]}},
            "params.constraint.choice.texts[3]",
            "structured_outputs.choice[3]",
        ),
    ],
)
def test_a_constraint_is_named_as_the_client_named_it(fields: dict[str, Any], inner: str, outer: str) -> None:
    error = in_words_of(InvalidArgument("x", field=inner), chat.field_names(body(**fields)))
    assert isinstance(error, InvalidArgument)
    assert error.field == outer


Delta, CallDelta = inference_pb2.ChatDelta, inference_pb2.ToolCallDelta


def call_part(index: int, arguments: str, call_id: str = "", name: str = "") -> inference_pb2.ChatDelta:
    return Delta(tool_calls=[CallDelta(index=index, id=call_id, name=name, arguments=arguments)])


def test_reasoning_is_a_field_of_its_own() -> None:
    parts = [Delta(reasoning_content="12"), Delta(reasoning_content=" + 7"), Delta(content="19")]
    whole = chat.ChatAnswer(HEAD, n=1, has_logprobs=False)
    stream = chat.ChatStream(HEAD, n=1, has_logprobs=False)
    said = []
    for part in parts:
        whole.add(0, tokens(1, text="raw"), part)
        said += stream.messages(0, tokens(1, text="raw"), part)
    whole.add(0, tokens(finished=end()), Delta())
    message = whole.to_json()["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "19",
        "refusal": None,
        "reasoning_content": "12 + 7",
    }
    assert [one["choices"][0]["delta"] for one in said] == [
        {"role": "assistant", "content": None},
        {"reasoning_content": "12"},
        {"reasoning_content": " + 7"},
        {"content": "19"},
    ]


def test_calls_come_name_first_and_end_with_their_own_reason() -> None:
    parts = [call_part(0, "", "a", "f"), call_part(0, "{}"), call_part(1, "{", "b", "g"), call_part(1, "}")]
    whole = chat.ChatAnswer(HEAD, n=1, has_logprobs=False)
    stream = chat.ChatStream(HEAD, n=1, has_logprobs=False)
    said = []
    for part in parts:
        whole.add(0, tokens(1, text="raw"), part)
        said += stream.messages(0, tokens(1, text="raw"), part)
    whole.add(0, tokens(finished=end()), Delta())
    said += stream.messages(0, tokens(finished=end()), Delta())
    (choice,) = whole.to_json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    calls = [{"id": c["id"], **c["function"]} for c in choice["message"]["tool_calls"]]
    assert calls == [{"id": "a", "name": "f", "arguments": "{}"}, {"id": "b", "name": "g", "arguments": "{}"}]
    assert said[1]["choices"][0]["delta"]["tool_calls"] == [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
    ]
    assert said[2]["choices"][0]["delta"]["tool_calls"] == [{"index": 0, "function": {"arguments": "{}"}}]
    assert said[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_that_a_limit_cut_says_so() -> None:
    whole = chat.ChatAnswer(HEAD, n=1, has_logprobs=False)
    whole.add(0, tokens(1), call_part(0, '{"a', "a", "f"))
    whole.add(0, tokens(finished=end(generation_pb2.FINISH_REASON_LENGTH)), Delta())
    assert whole.to_json()["choices"][0]["finish_reason"] == "length"


def test_tools_choices_and_calls_become_ours() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    made = request(
        tools=[{"type": "function", "function": function}],
        tool_choice={"type": "function", "function": {"name": "f"}},
        parallel_tool_calls=False,
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [called], "reasoning_content": "r"},
            {"role": "tool", "tool_call_id": "c", "content": "1"},
        ],
    )
    assert made.tools == [inference_pb2.Tool(name="f", description="d", parameters='{"type": "object"}')]
    assert made.tool_choice.name == "f"
    assert made.HasField("parallel_tool_calls")
    assert not made.parallel_tool_calls
    assert made.messages[1].tool_calls == [inference_pb2.ToolCall(id="c", name="f", arguments="{}")]
    assert made.messages[1].reasoning_content == "r"
    assert made.messages[2].tool_call_id == "c"


def test_images_of_a_message_are_parts_and_errors_name_the_clients_fields() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}}
    body = parse(
        ChatBody,
        json.dumps(
            {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, image]}]}
        ).encode(),
    )
    (message,) = chat.to_request(body).messages
    assert not message.content
    assert message.parts[0].text == "a"
    assert (message.parts[1].image.url, message.parts[1].image.detail) == ("data:image/png;base64,AA", "low")
    names = chat.field_names(body)
    assert names["messages[0].parts[1].image"] == "messages[0].content[1].image_url"
    assert names["messages[0].parts[1].image.detail"] == "messages[0].content[1].image_url.detail"


def test_an_image_part_needs_its_image() -> None:
    assert refusal(messages=[{"role": "user", "content": [{"type": "image_url"}]}]).field == (
        "messages[0].content[0].image_url"
    )


def test_sounds_are_parts_and_are_named_as_clients_have_them() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "QUI=", "format": "wav"}}
    content = [{"type": "text", "text": "What is said?"}, sound]
    (message,) = request(messages=[{"role": "user", "content": content}]).messages
    assert [part.WhichOneof("part") for part in message.parts] == ["text", "audio"]
    assert (message.parts[1].audio.data, message.parts[1].audio.format) == (b"AB", "wav")


@pytest.mark.parametrize(
    ("sound", "field"),
    [
        ({}, "messages[0].content[0].input_audio"),
        ({"input_audio": {"data": "!", "format": "wav"}}, "messages[0].content[0].input_audio.data"),
    ],
)
def test_a_part_that_is_no_sound_is_named(sound: dict[str, Any], field: str) -> None:
    part = {"type": "input_audio", **sound}
    assert refusal(messages=[{"role": "user", "content": [part]}]).field == field


OLD_FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def test_functions_of_older_clients_are_tools() -> None:
    old = request(functions=[OLD_FUNCTION], function_call={"name": "f"})
    tool = {"type": "function", "function": OLD_FUNCTION}
    choice = {"type": "function", "function": {"name": "f"}}
    assert old == request(tools=[tool], tool_choice=choice, parallel_tool_calls=False)


def test_a_call_of_an_older_client_finds_its_result() -> None:
    said = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "3"},
    ]
    _, call, result = request(messages=said, functions=[OLD_FUNCTION]).messages
    assert (call.tool_calls[0].name, result.role, result.content) == ("f", "tool", "3")
    assert result.tool_call_id == call.tool_calls[0].id != ""


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"functions": [{}]}, "functions[0].name"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call.name"),
    ],
)
def test_a_function_of_an_older_client_needs_a_name(fields: dict[str, Any], field: str) -> None:
    assert refusal(**fields).field == field


def test_an_older_client_gets_its_call_whole_and_in_parts() -> None:
    parts = [call_part(0, "", "call_1", "f"), call_part(0, '{"a":'), call_part(0, "1}")]
    answer = chat.ChatAnswer(HEAD, n=1, has_logprobs=False, is_legacy=True)
    stream = chat.ChatStream(HEAD, n=1, has_logprobs=False, is_legacy=True)
    messages = []
    for i, part in enumerate(parts):
        given = tokens(i, finished=end() if part is parts[-1] else None)
        answer.add(0, given, part)
        messages += stream.messages(0, given, part)
    choice = answer.to_json()["choices"][0]
    assert choice["message"]["function_call"] == {"name": "f", "arguments": '{"a":1}'}
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == messages[-1]["choices"][0]["finish_reason"] == "function_call"
    deltas = [m["choices"][0]["delta"].get("function_call", {}) for m in messages]
    assert "".join(delta.get("arguments", "") for delta in deltas) == '{"a":1}'


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"content": None}, ""),
        ({}, ""),
        ({"content": None, "refusal": "no"}, "no"),
        ({"content": [{"type": "refusal", "refusal": "no"}]}, "no"),
        ({"content": "a", "tool_calls": [], "function_call": None, "audio": None, "annotations": []}, "a"),
        ({"content": None, "reasoning_content": "hm"}, ""),
        ({"content": "a", "reasoning": "hm", "x": 1}, "a"),
    ],
)
def test_an_answer_can_be_sent_back_as_it_came(message: dict[str, Any], content: str) -> None:
    (made,) = request(messages=[{"role": "assistant", **message}]).messages
    assert made.content == content
    assert made.reasoning_content == message.get("reasoning_content", message.get("reasoning", ""))


def test_the_usage_comes_with_every_chunk_where_it_is_asked_for() -> None:
    head = Head("chatcmpl-1", "demo", 7)
    head.know("digest", 10)
    options = StreamOptions(include_usage=True, continuous_usage_stats=True)
    stream = chat.ChatStream(head, n=1, has_logprobs=False, options=options)
    first = stream.messages(0, tokens(1, text="a"))[-1]
    second = stream.messages(0, tokens(2, 3, text="b"))[-1]
    assert [m["usage"]["completion_tokens"] for m in (first, second)] == [1, 3]
    assert second["usage"]["total_tokens"] == 13
    assert second["system_fingerprint"].startswith("fp_")


def test_whether_an_answer_is_to_come_again_is_left_open_unless_it_is_said() -> None:
    assert not request().params.HasField("deterministic")
    for value in (True, False):
        params = request(deterministic=value).params
        assert params.HasField("deterministic")
        assert params.deterministic == value
