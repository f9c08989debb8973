"""Prompts of published chat templates, ours beside Hugging Face's.

    python -m benchmarks.chat_templates --reference PYTHON

PYTHON is an interpreter that has `transformers`, which is no dependency of this project; it renders the same
conversations with the same templates (../shared/data/chat-templates). Thoughts go to it under the name that
we found for each template, and switches as variables that the template reads. Where it refuses one, or breaks
down over it, there is nothing to compare with: what we make of those is counted aside.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inferflux.common.text.chat_templates.capabilities import Place
from inferflux.common.text.chat_templates.sandbox import today
from inferflux.common.text.chat_templates.switches import SwitchError, switches_of
from inferflux.common.text.chat_templates.templates import ChatTemplate, Json, TemplateError
from inferflux.gateway.tokenizer.rendering import Asked, TemplateRenderer
from inferflux.gateway.tokenizer.tokenizer_fault import TokenizerFaultError
from inferflux.v1 import inference_pb2

FOLDER = Path(__file__).parents[2] / "shared/data/chat-templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
REFERENCE = """
import json, sys
from transformers.utils.chat_template_utils import render_jinja_template
for line in sys.stdin:
    asked = json.loads(line)
    try:
        made = render_jinja_template([asked["messages"]], tools=asked["tools"] or None,
            chat_template=asked["source"], add_generation_prompt=True, **asked["variables"])[0][0]
    except Exception:
        made = None
    print(json.dumps(made))
"""


def _said(role: str, text: str, **rest: Any) -> Json:
    return {"role": role, "content": text, **rest}


def _tool(name: str, *keys: str) -> Json:
    properties = {key: {"type": "string", "description": f"The {key}."} for key in keys}
    parameters = {"type": "object", "properties": properties, "required": list(keys)}
    return {
        "type": "function",
        "function": {"name": name, "description": "A function.", "parameters": parameters},
    }


def _call(call_id: str, name: str, **arguments: Any) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


_SYSTEM, _USER, _AGAIN = (
    _said("system", "Be brief & kind."),
    _said("user", "How is Köln?"),
    _said("user", "And\n\nnow?"),
)
_ANSWER = _said("assistant", "Sunny <ok>.")
_TOOLS = [_tool("get_weather", "city", "day"), _tool("add", "a")]
_WEATHER, _SUM = _call("aB3dEf6h9", "get_weather", city="Köln", day="2"), _call("cD4eFg7h1", "add", a="1")
_RAIN = _said("tool", "rain", tool_call_id="aB3dEf6h9", name="get_weather")
_TWO = _said("tool", '{"sum": 2}', tool_call_id="cD4eFg7h1", name="add")
_PARTS = [{"type": "text", "text": "How is it?"}]
_THINKING = {"thought": "The user asks about Köln."}
#: Conversation, tools, switches.
CASES: dict[str, tuple[list[Json], list[Json], Json]] = {
    "plain": ([_USER], [], {}),
    "system": ([_SYSTEM, _USER], [], {}),
    "turns": ([_SYSTEM, _USER, _ANSWER, _AGAIN], [], {}),
    "turns without system": ([_USER, _ANSWER, _AGAIN, _ANSWER, _USER], [], {}),
    "parts": ([{"role": "user", "content": _PARTS}], [], {}),
    "tools": ([_USER], _TOOLS, {}),
    "tools and system": ([_SYSTEM, _USER], _TOOLS[:1], {}),
    "a call": ([_USER, _said("assistant", "", tool_calls=[_WEATHER]), _RAIN], _TOOLS, {}),
    "a call answered": (
        [_SYSTEM, _USER, _said("assistant", "", tool_calls=[_WEATHER]), _RAIN, _ANSWER, _AGAIN],
        _TOOLS,
        {},
    ),
    "calls": ([_USER, _said("assistant", "", tool_calls=[_WEATHER, _SUM]), _RAIN, _TWO], _TOOLS, {}),
    "a call and text": ([_USER, _said("assistant", "I see.", tool_calls=[_WEATHER]), _RAIN], _TOOLS, {}),
    "calls in turn": (
        [
            _USER,
            _said("assistant", "", tool_calls=[_WEATHER]),
            _RAIN,
            _said("assistant", "", tool_calls=[_SUM]),
            _TWO,
        ],
        _TOOLS,
        {},
    ),
    "a thought": ([_USER, {**_ANSWER, **_THINKING}, _AGAIN], [], {}),
    "a thought and a call": (
        [_USER, _said("assistant", "", tool_calls=[_WEATHER], **_THINKING), _RAIN],
        _TOOLS,
        {},
    ),
    "thinking on": ([_USER], [], {"enable_thinking": True}),
    "thinking off": ([_SYSTEM, _USER], [], {"enable_thinking": False}),
    "thinking off, with tools": ([_USER], _TOOLS, {"enable_thinking": False}),
    "effort": ([_USER], [], {"reasoning_effort": "high"}),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reference", required=True, help="a Python interpreter that has transformers")
    arguments = parser.parse_args()
    sources = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}
    if not sources:
        print(f"there are no templates in {FOLDER}", file=sys.stderr)
        return 2
    cases = list(_cases(sources))
    lines = "\n".join(json.dumps(reference) for *_, reference in cases)
    made = subprocess.run(
        [arguments.reference, "-c", REFERENCE], input=lines, stdout=subprocess.PIPE, text=True, check=True
    )
    counts: Counter[str] = Counter()
    for (template, case, ours, _), line in zip(cases, made.stdout.splitlines(), strict=True):
        expected = json.loads(line)
        if expected is None:
            counts["of those that the reference refuses we render" if ours else "both refuse"] += 1
        elif ours == expected:
            counts["equal"] += 1
        elif ours is not None and _loses(expected, case, ours):
            counts["of those in which the reference loses a text we show it"] += 1
        else:
            counts["different"] += 1
            print(f"{template}: {case}: {'another prompt' if ours else 'refused'}")
    for what, n in counts.items():
        print(f"{n:5} {what}")
    print(f"{counts['equal'] / max(counts['equal'] + counts['different'], 1):.1%} equal")
    return 0


def _loses(expected: str, case: str, ours: str) -> bool:
    """Return whether a prompt lacks a text that another one has, or spells parts out as Python does."""
    messages, tools, _ = CASES[case]
    texts = [
        part["text"] for each in messages if isinstance(each["content"], list) for part in each["content"]
    ]
    texts += [each["content"] for each in messages if isinstance(each["content"], str)]
    texts += [tool["function"]["description"] for tool in tools]
    for each in messages:
        for call in each.get("tool_calls", ()):
            texts += [call["function"]["name"], *call["function"]["arguments"].values()]
    is_spelt_out = "'type': 'text'" in expected or '"type": "text"' in expected
    lost = [text for text in texts if text.strip() not in expected]
    return (bool(lost) or is_spelt_out) and all(text.strip() in ours for text in lost)


def _cases(sources: dict[str, str]) -> Iterator[tuple[str, str, str | None, Json]]:
    """(template, case, our prompt, what the reference is asked)."""
    for name, source in sources.items():
        template = ChatTemplate(source, tokens=TOKENS, max_rendered_bytes=1 << 22)
        renderer = TemplateRenderer(template, frozenset(), frozenset())
        thoughts = renderer.reads.thoughts
        for case, (messages, tools, asked) in CASES.items():
            given = {key: value for key, value in asked.items() if key != "reasoning_effort"}
            try:
                switches = switches_of(template, renderer.reads, given, asked.get("reasoning_effort", ""))
            except SwitchError:
                continue  # refused by name, as asked for
            if thoughts.place is not Place.KEY and any("thought" in each for each in messages):
                continue
            reference = {
                "source": source,
                "messages": [_for_reference(each, thoughts.key) for each in messages],
                "tools": tools,
                "variables": TOKENS | today() | switches,
            }
            form = Asked(switches=given, effort=asked.get("reasoning_effort", ""))
            yield name, case, _ours(renderer, messages, tools, form), reference


def _for_reference(message: Json, key: str) -> Json:
    given = dict(message)
    thought = given.pop("thought", None)
    return given if thought is None else {**given, key: thought}


def _ours(renderer: TemplateRenderer, messages: list[Json], tools: list[Json], asked: Asked) -> str | None:
    try:
        made = renderer.render(
            [_message(each) for each in messages],
            [_described(each) for each in tools],
            asked,
            "none",
        )
    except (TokenizerFaultError, TemplateError):
        return None
    return made.text


def _message(message: Json) -> inference_pb2.ChatMessage:
    made = inference_pb2.ChatMessage(
        role=message["role"],
        name=message.get("name", ""),
        tool_call_id=message.get("tool_call_id", ""),
        reasoning_content=message.get("thought", ""),
    )
    if isinstance(message["content"], str):
        made.content = message["content"]
    else:
        made.parts.extend(inference_pb2.ContentPart(text=part["text"]) for part in message["content"])
    for call in message.get("tool_calls", ()):
        function = call["function"]
        made.tool_calls.add(id=call["id"], name=function["name"], arguments=json.dumps(function["arguments"]))
    return made


def _described(tool: Json) -> inference_pb2.Tool:
    function = tool["function"]
    return inference_pb2.Tool(
        name=function["name"],
        description=function["description"],
        parameters=json.dumps(function["parameters"]),
    )


if __name__ == "__main__":
    sys.exit(main())
