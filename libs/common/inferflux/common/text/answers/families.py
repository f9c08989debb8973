# ruff: noqa: RUF001
"""Model families whose answer format cannot be derived from what their templates render (pure).

Everything else is derived from the template: `text/chat_templates/derive.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from inferflux.v1 import generation_pb2

_JSON, _TEXT, _PYTHON, _NESTED = (
    generation_pb2.ARGUMENT_STYLE_JSON,
    generation_pb2.ARGUMENT_STYLE_TEXT,
    generation_pb2.ARGUMENT_STYLE_PYTHON,
    generation_pb2.ARGUMENT_STYLE_NESTED,
)
_OBJECT: Final = '{"name": "$name", "arguments": $arguments}'


def _family(
    *,
    thought: tuple[str, str] | None = None,
    content: tuple[str, str] = ("", ""),
    channels: Mapping[str, Any] | None = None,
    noise: tuple[str, ...] = (),
    **calls: Any,
) -> generation_pb2.AnswerSyntax:
    made = generation_pb2.AnswerSyntax(
        calls=generation_pb2.CallSyntax(**{"style": _JSON} | calls),
        content_begin=content[0],
        content_end=content[1],
        noise=noise,
    )
    if thought is not None:
        made.thought.begin, made.thought.end = thought
    if channels is not None:
        made.channels.CopyFrom(generation_pb2.ChannelSyntax(**channels))
    return made


HERMES: Final = _family(call=f"<tool_call>\n{_OBJECT}\n</tool_call>", separator="\n")
LFM2: Final = _family(
    begin="<|tool_call_start|>[",
    call="$name($arguments)",
    separator=", ",
    end="]<|tool_call_end|>",
    style=_PYTHON,
    parameter="$key=$value",
    parameter_separator=", ",
)
HARMONY: Final = _family(
    thought=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    content=("<|channel|>final<|message|>", ""),
    call="<|channel|>commentary to=functions.$name <|constrain|>json<|message|>$arguments<|call|>",
    is_single=True,
    channels={
        "begins": ["<|start|>", "<|channel|>"],
        "header_end": "<|message|>",
        "ends": ["<|end|>", "<|call|>", "<|return|>"],
        "thoughts": ["analysis"],
        "recipient": "functions.",
    },
)

# Which family a template is of: the first of which it has all texts.
FAMILIES: Final[tuple[tuple[tuple[str, ...], generation_pb2.AnswerSyntax], ...]] = (
    (("<|channel|>", "<|message|>", "commentary"), HARMONY),
    (
        ("to=self", "<|message|>", "<atem:"),
        _family(
            thought=(" to=self<|message|>", "<|eom|><|start|>assistant"),
            content=(" to=user<|message|>", ""),
            begin=" to=$name<|message|><atem:function_calls>\n",
            call='<atem:invoke name="$name">$arguments\n</atem:invoke>',
            end="\n</atem:function_calls>",
            style=_TEXT,
            parameter='\n<atem:parameter name="$key">$value</atem:parameter>',
            channels={
                "begins": ["<|start|>"],
                "header_end": "<|message|>",
                "ends": ["<|eom|>", "<|eot|>"],
                "thoughts": ["to=self"],
            },
        ),
    ),
    (
        ("<|open|>", "<|close|>", "<|sep|>"),
        _family(
            thought=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
            content=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
            noise=("<|close|>message<|sep|>", "<|end_of_msg|>", '<|open|>message role="assistant"<|sep|>'),
            begin="<|open|>tools<|sep|>",
            call='<|open|>call tool="$name" index="$number"<|sep|>$arguments<|close|>call<|sep|>',
            end="<|close|>tools<|sep|>",
            style=_TEXT,
            parameter='<|open|>argument key="$key" type="$type"<|sep|>$value<|close|>argument<|sep|>',
        ),
    ),
    (
        ("]<]minimax[>[",),
        _family(
            thought=("<mm:think>", "</mm:think>"),
            begin="]<]minimax[>[<tool_call>\n",
            call=']<]minimax[>[<invoke name="$name">$arguments]<]minimax[>[</invoke>\n',
            end="]<]minimax[>[</tool_call>",
            style=_NESTED,
            parameter="]<]minimax[>[<$key>$value]<]minimax[>[</$key>",
        ),
    ),
    ((">>>all",), _family(call=">>>$name\n$arguments", noise=(">>>all",))),
    (
        ("<|begin|>assistant", "<|tool_calls|>", "<|content|>"),
        _family(
            thought=("<|think|>", "<|end|>"),
            content=("<|content|>", "<|end|>"),
            noise=("<|begin|>assistant",),
            begin="<|tool_calls|>",
            call="<|tool_call:begin|>$id<|tool_call:name|>$name<|tool_call:args|>$arguments<|tool_call:end|>",
            end="<|calls|>",
        ),
    ),
    (
        ("<|tool_call_argument_begin|>",),
        _family(
            begin="<|tool_calls_section_begin|>",
            call="<|tool_call_begin|>functions.$name:$index<|tool_call_argument_begin|>$arguments<|tool_call_end|>",
            end="<|tool_calls_section_end|>",
            id_form="functions.$name:$index",
        ),
    ),
    (
        ("directly-answer", "Action:"),
        _family(
            begin="Action:\n```json\n[\n    ",
            call='{\n        "tool_name": "$name",\n        "parameters": $arguments\n    }',
            separator=",\n    ",
            end="\n]\n```",
        ),
    ),
)
# The same for templates from which nothing can be derived.
FALLBACKS: Final[tuple[tuple[tuple[str, ...], generation_pb2.AnswerSyntax], ...]] = (
    (
        ("<｜tool▁calls▁begin｜>",),
        _family(
            begin="<｜tool▁calls▁begin｜>",
            call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>$name\n```json\n$arguments\n```<｜tool▁call▁end｜>",
            separator="\n",
            end="<｜tool▁calls▁end｜>",
        ),
    ),
    (
        ("<|tool_list_start|>",),
        LFM2,
    ),
    (
        ("List of tools: [",),
        LFM2,
    ),
    (("<TOOLCALL>",), _family(begin="<TOOLCALL>[", call=_OBJECT, separator=", ", end="]</TOOLCALL>")),
    (("functools[",), _family(begin="functools[", call=_OBJECT, separator=", ", end="]")),
    (("<|tool_call|>",), _family(begin="<|tool_call|>[", call=_OBJECT, separator=", ", end="]")),
    (
        ("<function=example_function_name>",),
        _family(call="<function=$name>$arguments</function>"),
    ),
    (("<tool_call>", "</tool_call>"), HERMES),
)


def family_in(
    source: str, families: tuple[tuple[tuple[str, ...], generation_pb2.AnswerSyntax], ...]
) -> generation_pb2.AnswerSyntax | None:
    """The family that a template's source names."""
    return next((syntax for texts, syntax in families if all(one in source for one in texts)), None)


def syntax_in(
    syntax: generation_pb2.AnswerSyntax,
    reasoning: generation_pb2.ReasoningFormat.ValueType,
) -> generation_pb2.AnswerSyntax:
    """The syntax of a message. Where it has none, thoughts are between `<think>` and `</think>`."""
    if syntax.ByteSize():
        return syntax
    made = generation_pb2.AnswerSyntax()
    if reasoning:
        made.thought.begin, made.thought.end = "<think>", "\n</think>\n\n"
    return made
