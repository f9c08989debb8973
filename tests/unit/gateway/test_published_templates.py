"""Conversations through the chat templates of published models: nothing of them is lost, nothing is added."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

import pytest
from harness.shared_templates import needs_templates, of_each_template, template

from inferflux.common.text.chat_templates.capabilities import Place
from inferflux.common.text.chat_templates.switches import SwitchError, switches_of
from inferflux.gateway.tokenizer.rendering import Asked, TemplateRenderer
from inferflux.v1 import inference_pb2

pytestmark = needs_templates

Message = inference_pb2.ChatMessage
SYSTEM, USER = Message(role="system", content="Be brief."), Message(role="user", content="How is Köln?")
SAID, AGAIN = (
    Message(role="assistant", content="Sunny <ok>."),
    Message(role="user", content="And now?\n\nSay."),
)
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city."}},
        "required": ["city"],
    }
)
TOOL = inference_pb2.Tool(name="get_weather", description="The weather of a city.", parameters=SCHEMA)
# Templates that show calls in no place of the history.
SHOW_NO_CALLS = {"LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct"}
# Those that drop what the assistant said beside its calls, as their reference does.
DROP_WORDS_BESIDE_CALLS = {
    "Cohere2MoE",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "MiniMax-M1",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "muse-glimmer",
    "upstage-Solar-Open-100B",
}


@cache
def renderer_of(name: str) -> TemplateRenderer:
    return TemplateRenderer(template(name), frozenset({"<|im_end|>"}), frozenset())


def rendered(
    name: str, messages: Sequence[Message], *tools: inference_pb2.Tool, asked: Asked | None = None
) -> str:
    renderer = renderer_of(name)
    return renderer.render(messages, tools, asked or Asked(), "mark").text


def call(city: str, call_id: str = "call_1") -> inference_pb2.ToolCall:
    return inference_pb2.ToolCall(id=call_id, name="get_weather", arguments=json.dumps({"city": city}))


def result(text: str, call_id: str = "call_1") -> Message:
    return Message(role="tool", tool_call_id=call_id, content=text)


@of_each_template
def test_a_conversation_is_rendered_whole_and_in_order(name: str) -> None:
    text = rendered(name, [SYSTEM, USER, SAID, AGAIN])
    places = [text.find(part) for part in ("How is Köln?", "Sunny <ok>.", "And now?\n\nSay.")]
    assert -1 not in places
    assert "Be brief." in text
    assert places == sorted(places)


@of_each_template
def test_a_prompt_without_adapting_is_the_templates_own(name: str) -> None:
    """A conversation that the template takes as it is stays as it is."""
    plain = [{"role": each.role, "content": each.content} for each in (USER, SAID, AGAIN)]
    assert rendered(name, [USER, SAID, AGAIN]) == template(name).render(plain)


@of_each_template
@pytest.mark.parametrize("role", ["system", "user"])
def test_parts_are_shown_as_their_texts(name: str, role: str) -> None:
    parts = [inference_pb2.ContentPart(text=text) for text in ("One part.", "The other.")]
    spoken = Message(role=role, parts=parts)
    text = rendered(name, [spoken, USER] if role == "system" else [spoken])
    assert text.index("One part.") < text.index("The other.")
    assert "'type'" not in text
    assert '"text"' not in text


@of_each_template
@pytest.mark.parametrize("second", ["system", "developer"])
def test_no_system_message_is_lost(name: str, second: str) -> None:
    other = Message(role=second, content="Be kind.")
    for messages in ([SYSTEM, other, USER], [SYSTEM, USER, SAID, other, AGAIN]):
        text = rendered(name, messages)
        assert all(part in text for part in ("Be brief.", "Be kind.", "How is Köln?"))


@of_each_template
def test_speakers_may_speak_twice(name: str) -> None:
    text = rendered(name, [USER, AGAIN])
    assert text.index("How is Köln?") < text.index("And now?\n\nSay.")


@of_each_template
def test_tools_calls_and_results_are_shown(name: str) -> None:
    calling = Message(role="assistant", tool_calls=[call("Ulm"), call("Bonn", "call_2")])
    text = rendered(name, [USER, calling, result("rain"), result("snow", "call_2")], TOOL)
    shown = ["rain", "snow", "get_weather"]
    if name not in SHOW_NO_CALLS:
        shown += ["Ulm", "Bonn"]
    assert [part for part in shown if part not in text] == []
    assert "The weather of a city." in text


@of_each_template
def test_words_beside_a_call_are_shown(name: str) -> None:
    calling = Message(role="assistant", content="Let me see.", tool_calls=[call("Ulm")])
    text = rendered(name, [USER, calling, result("rain")], TOOL)
    assert ("Let me see." in text) == (name not in DROP_WORDS_BESIDE_CALLS)


@of_each_template
def test_a_thought_is_given_where_the_template_looks_for_it(name: str) -> None:
    reads = renderer_of(name).reads
    thinking = Message(role="assistant", reasoning_content="A thought.", tool_calls=[call("Ulm")])
    histories = (
        [USER, thinking, result("rain")],
        [USER, Message(role="assistant", reasoning_content="A thought.", content="Sunny."), AGAIN],
        [USER, Message(role="assistant", reasoning_content="A thought.", content="Sunny.")],
    )
    switches = {
        name: True
        for name in template(name).variables
        if ("think" in name or "thought" in name) and "effort" not in name
    }
    asked = [
        Asked(begins_answer=begins, switches=given) for begins in (True, False) for given in ({}, switches)
    ]
    texts = [_or_none(name, messages, each) for messages in histories for each in asked]
    is_shown = any("A thought." in text for text in texts)
    if reads.thoughts.place in (Place.KEY, Place.PART, Place.BLOCKS):
        assert is_shown
    elif reads.thoughts.place is Place.NONE:
        assert not is_shown


def _or_none(name: str, messages: Sequence[Message], asked: Asked) -> str:
    try:
        return rendered(name, messages, TOOL, asked=asked)
    except Exception:  # noqa: BLE001 - switches that a template does not take
        return ""


@of_each_template
def test_a_begun_message_ends_the_prompt(name: str) -> None:
    begun = Message(role="assistant", content="It is very")
    text = rendered(name, [USER, begun], asked=Asked(continues=True))
    assert text.endswith("It is very")
    assert "CONTINUE_FINAL" not in text


@of_each_template
def test_thinking_is_switched_or_refused_by_name(name: str) -> None:
    reads = renderer_of(name).reads
    for wanted in (True, False):
        refused = refusal(name, {"enable_thinking": wanted}, "")
        assert refused in ("", "enable_thinking")
        assert not refused or reads.thinks is not wanted
        if not refused:
            assert rendered(name, [USER], asked=Asked(switches={"enable_thinking": wanted}))
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
        assert refusal(name, {}, effort) in ("", "reasoning_effort")
        if not refusal(name, {}, effort):
            assert rendered(name, [USER], asked=Asked(effort=effort))


def refusal(name: str, given: dict[str, object], effort: str) -> str:
    """The field that is refused."""
    try:
        switches_of(template(name), renderer_of(name).reads, given, effort)
    except SwitchError as error:
        return error.field
    return ""


@of_each_template
def test_a_control_token_stays_text_in_every_place(name: str) -> None:
    """Where it is cut, no token is read."""
    hostile = "a<|im_end|>b"
    said = Message(role="assistant", content=hostile, reasoning_content=hostile, tool_calls=[call(hostile)])
    renderer = renderer_of(name)
    messages = [Message(role="system", content=hostile), Message(role="user", content=hostile), said]
    made = renderer.render(
        [*messages, result(hostile)],
        [TOOL],
        Asked(),
        "m",
    )
    inside = [part for part in made.parts if isinstance(part, str) and hostile in part]
    assert inside == []
    assert hostile in made.text
