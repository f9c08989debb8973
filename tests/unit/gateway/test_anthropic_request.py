"""Bodies of Anthropic's messages to requests."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.anthropic.bodies import MessagesBody
from inferflux.gateway.http.anthropic.request import Prompt, to_request
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.front.bodies import parse
from inferflux.gateway.http.openai import chat
from inferflux.gateway.http.openai.bodies import ChatBody
from inferflux.gateway.http.openai.served import MESSAGE
from inferflux.v1 import inference_pb2

OWN = {
    "deterministic": True,
    "min_tokens": 3,
    "bad_words": ["b"],
    "stop_token_ids": [7],
    "ignore_eos": True,
    "speculation": "off",
    "max_reasoning_tokens": 5,
    "min_p": 0.25,
    "xtc_probability": 0.5,
    "penalty_last_n": 9,
}
QUESTION = {"role": "user", "content": "hello"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "é"}}
PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def body(**fields: Any) -> MessagesBody:
    made = {"model": "demo", "max_tokens": 9, "messages": [QUESTION]} | fields
    return parse(MessagesBody, json.dumps(made).encode())


def request(**fields: Any) -> inference_pb2.ChatRequest:
    made = body(**fields)
    return to_request(made, Prompt(made))


def refusal(**fields: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        request(**fields)
    return caught.value


def turns(*messages: Any, **fields: Any) -> list[tuple[str, str]]:
    return [(each.role, each.content) for each in request(messages=[*messages], **fields).messages]


def result(content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize("system", ["a\nb", [text("a"), text("b")]])
def test_a_system_prompt_is_a_text_or_blocks_which_are_lines(system: Any) -> None:
    assert turns(QUESTION, system=system) == [("system", "a\nb"), ("user", "hello")]


@pytest.mark.parametrize(
    "system",
    [
        "x-anthropic-billing-header: cch=1;\nYou help.",
        [text("x-anthropic-billing-header: cc_version=2.1; cch=fd4c9;"), text("You help.")],
        [text("x-anthropic-billing-header: cch=1;\nYou help.")],
    ],
)
def test_the_line_that_says_who_pays_is_left_out_of_the_prompt(system: Any) -> None:
    assert turns(QUESTION, system=system)[0] == ("system", "You help.")


def test_a_later_line_about_paying_is_text_as_any_other() -> None:
    said = "You help.\nx-anthropic-billing-header: cch=1;"
    assert turns(QUESTION, system=said)[0] == ("system", said)


def test_a_system_prompt_that_only_says_who_pays_is_none() -> None:
    assert turns(QUESTION, system="x-anthropic-billing-header: cch=1;") == [("user", "hello")]


def test_turns_in_one_role_are_one_message() -> None:
    said = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [text("b")]},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": [CALL]},
    ]
    made = request(messages=said).messages
    assert [(each.role, each.content) for each in made] == [("user", "a\nb"), ("assistant", "c")]
    assert [call.name for call in made[1].tool_calls] == ["look"]


def test_results_of_tools_come_before_what_the_user_says_with_them() -> None:
    said = {"role": "user", "content": [text("Here:"), result("19"), result([text("a"), text("b")])]}
    made = turns(QUESTION, {"role": "assistant", "content": [CALL]}, said)
    assert made[2:] == [("tool", "19"), ("tool", "a\nb"), ("user", "Here:")]


def test_a_result_names_its_call_and_a_failed_one_says_that_it_failed() -> None:
    said = {"role": "user", "content": [result("no such city", is_error=True), result(None, is_error=True)]}
    made = request(messages=[QUESTION, {"role": "assistant", "content": [CALL]}, said]).messages
    assert [(each.tool_call_id, each.content) for each in made[2:]] == [
        ("toolu_1", "Error: no such city"),
        ("toolu_1", "Error: "),
    ]


def test_images_of_a_result_are_the_users() -> None:
    said = {"role": "user", "content": [result([text("a.png"), PIXEL]), text("What is it?")]}
    made = request(messages=[QUESTION, {"role": "assistant", "content": [CALL]}, said])
    assert (made.messages[2].role, made.messages[2].content) == ("tool", "a.png")
    assert [part.WhichOneof("part") for part in made.messages[3].parts] == ["image", "text"]
    assert made.messages[3].parts[0].image.data == b"hi"


def test_images_have_data_or_a_url() -> None:
    by_url = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}
    made = request(messages=[{"role": "user", "content": [PIXEL, by_url, text("what?")]}])
    assert [part.image.url for part in made.messages[0].parts] == ["", "https://a/b.png", ""]


def test_thoughts_and_calls_are_fields_of_a_message() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        text("I look."),
        CALL,
    ]
    made = request(messages=[QUESTION, {"role": "assistant", "content": blocks}, QUESTION]).messages[1]
    assert (made.reasoning_content, made.content) == ("hm", "I look.")
    assert [(call.id, call.name, call.arguments) for call in made.tool_calls] == [
        ("toolu_1", "look", '{"at": "é"}')
    ]


def test_documents_of_text_and_search_results_are_read() -> None:
    encoded = base64.b64encode("é".encode()).decode()
    blocks = [
        {
            "type": "document",
            "title": "T",
            "source": {"type": "text", "media_type": "text/plain", "data": "d"},
        },
        {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": encoded}},
        {"type": "document", "source": {"type": "content", "content": [text("inner")]}},
        {"type": "search_result", "title": "R", "source": "https://a", "content": [text("found")]},
    ]
    assert turns({"role": "user", "content": blocks}) == [("user", "T\nd\né\ninner\nR\nhttps://a\nfound")]


def test_a_last_message_of_the_assistant_is_begun() -> None:
    begun = {"role": "assistant", "content": "The answer is"}
    assert request(messages=[QUESTION, begun]).continue_final_message
    assert not request(messages=[QUESTION, begun, QUESTION]).continue_final_message
    for nothing in ("", [text("")], [CALL], [text("I look."), CALL]):
        last = {"role": "assistant", "content": nothing}
        assert not request(messages=[QUESTION, last]).continue_final_message


def test_no_messages_are_an_empty_one() -> None:
    assert turns() == [("user", "")]


def test_tools_of_other_types_are_skipped_and_said() -> None:
    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}, "strict": True},
        {"type": "bash 2\r\n", "name": "bash"},
        {"type": "custom", "name": "f", "input_schema": {}},
    ]
    hosted = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result"}]}
    made = body(
        tools=tools, messages=[QUESTION, {"role": "assistant", "content": [hosted, found, text("x")]}]
    )
    prompt = Prompt(made)
    assert prompt.skipped == [
        "web_search_20250305",
        "bash_2__",
        "server_tool_use",
        "web_search_tool_result",
    ]
    sent = to_request(made, prompt).tools
    assert [(tool.name, tool.strict) for tool in sent] == [("look", True), ("f", False)]
    wrong = InvalidArgument("tools[0].parameters: no", field="tools[0].parameters")
    told = in_words_of(wrong, prompt.field_names())
    assert isinstance(told, InvalidArgument)
    assert told.field == "tools[1].input_schema"


def test_a_tool_is_chosen_by_mode_or_name() -> None:
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    modes = {
        name: request(tools=tools, tool_choice={"type": name}).tool_choice.mode
        for name in ("auto", "any", "none")
    }
    assert modes == {
        "auto": inference_pb2.TOOL_CHOICE_MODE_AUTO,
        "any": inference_pb2.TOOL_CHOICE_MODE_REQUIRED,
        "none": inference_pb2.TOOL_CHOICE_MODE_NONE,
    }
    single = request(
        tools=tools, tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    )
    assert single.tool_choice.name == "look"
    assert single.HasField("parallel_tool_calls")
    assert not single.parallel_tool_calls
    assert not request(tools=tools).HasField("parallel_tool_calls")


def test_sampling_has_anthropics_names() -> None:
    params = request(temperature=0.5, top_p=0.25, top_k=3, stop_sequences=["a", "b"], seed=4).params
    sampling = params.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.25, 3, 4)
    assert (params.max_tokens, list(params.stop)) == (9, ["a", "b"])


def test_fields_of_ours_mean_what_they_mean_in_chats() -> None:
    made = request(**OWN, priority=3, adapter="a", skip_answer_cache=True)
    told = chat.to_request(
        parse(ChatBody, json.dumps({"messages": [QUESTION], "max_tokens": 9} | OWN).encode())
    )
    assert made.params == told.params
    assert (made.priority, made.adapter, made.skip_answer_cache) == (3, "a", True)
    error = InvalidArgument("no", field="params.max_reasoning_tokens")
    told_error = in_words_of(error, Prompt(body(**OWN)).field_names())
    assert isinstance(told_error, InvalidArgument)
    assert told_error.field == "max_reasoning_tokens"


def test_thinking_is_a_switch_of_the_template_and_a_budget() -> None:
    made = request(thinking={"type": "enabled", "budget_tokens": 1024})
    assert json.loads(made.chat_template_kwargs) == {"enable_thinking": True}
    assert made.params.max_reasoning_tokens == 1024
    off = request(thinking={"type": "disabled"}, output_config={"effort": "max"})
    assert json.loads(off.chat_template_kwargs) == {"enable_thinking": False}
    assert (off.reasoning_effort, off.has_optional_switches) == ("xhigh", True)
    assert not request().chat_template_kwargs
    counted = Prompt(body(thinking={"type": "disabled"}, output_config={"effort": "low"})).tokenize_request()
    told = counted.conversation
    assert (told.chat_template_kwargs, told.reasoning_effort) == (off.chat_template_kwargs, "low")
    assert told.has_optional_switches


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_a_schema_is_a_constraint(place: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    made = request(**{place: {"format": form} if place == "output_config" else form})
    assert json.loads(made.params.constraint.json_schema) == {"type": "object"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "a"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "document",
                                "source": {"type": "base64", "media_type": "application/pdf", "data": ""},
                            }
                        ],
                    }
                ]
            },
            "messages[0].content[0].source",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tool_choice": {"type": "always"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "hard"}}, "thinking.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"max_tokens": None}, "max_tokens"),
        ({"deterministic": 1}, "deterministic"),
        *(({name: "x"}, name) for name in MESSAGE),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    assert refusal(**fields).field == field


def test_errors_name_what_the_client_sent() -> None:
    said = [
        QUESTION,
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [text("a"), PIXEL]},
    ]
    budget = {"type": "enabled", "budget_tokens": 5}
    names = Prompt(body(system="s", messages=said, thinking=budget)).field_names()
    for inner, outer in {
        "messages[3].parts[1].image": "messages[2].content[1]",
        "messages[2].tool_calls[0].name": "messages[1].content[0].name",
        "messages[2].tool_calls[0].arguments": "messages[1].content[0].input",
        "params.stop[1]": "stop_sequences[1]",
        "params.max_reasoning_tokens": "thinking.budget_tokens",
    }.items():
        told = in_words_of(InvalidArgument("no", field=inner), names)
        assert isinstance(told, InvalidArgument)
        assert told.field == outer
