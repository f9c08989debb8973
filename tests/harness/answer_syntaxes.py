# ruff: noqa: E501, RUF001
"""Ways in which families of models write answers, and right answers in each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from inferflux.common.text.answers.families import HARMONY
from inferflux.v1 import generation_pb2

J, T, P, G, N = (
    generation_pb2.ARGUMENT_STYLE_JSON,
    generation_pb2.ARGUMENT_STYLE_TEXT,
    generation_pb2.ARGUMENT_STYLE_PYTHON,
    generation_pb2.ARGUMENT_STYLE_GEMMA,
    generation_pb2.ARGUMENT_STYLE_NESTED,
)
THINK = ("<think>\n", "\n</think>\n\n")


def family(
    thought: tuple[str, str] | None = THINK, *, calls: Mapping[str, Any], **fields: Any
) -> generation_pb2.AnswerSyntax:
    made = generation_pb2.AnswerSyntax(calls=generation_pb2.CallSyntax(**calls), **fields)
    if thought is not None:
        made.thought.begin, made.thought.end = thought
    return made


FAMILIES: Final = {
    "hermes": family(
        calls={
            "call": '<tool_call>\n{"name": "$name", "arguments": $arguments}\n</tool_call>',
            "separator": "\n",
            "style": J,
        }
    ),
    "llama3": family(
        None,
        calls={
            "call": '{"name": "$name", "parameters": $arguments}',
            "style": J,
            "is_whole_answer": True,
            "optional_begins": ["<|python_tag|>"],
            "is_single": True,
        },
    ),
    "nemo": family(
        None,
        calls={
            "begin": "[TOOL_CALLS][",
            "call": '{"name": "$name", "arguments": $arguments}',
            "separator": ", ",
            "end": "]",
            "style": J,
        },
    ),
    "devstral": family(None, calls={"call": "[TOOL_CALLS]$name[ARGS]$arguments", "style": J}),
    "small32": family(None, calls={"call": "[TOOL_CALLS]$name[CALL_ID]$id[ARGS]$arguments", "style": J}),
    "kimi": family(
        calls={
            "begin": "<|tool_calls_section_begin|>",
            "call": "<|tool_call_begin|>functions.$name:$index<|tool_call_argument_begin|>$arguments<|tool_call_end|>",
            "end": "<|tool_calls_section_end|>",
            "style": J,
        }
    ),
    "coder": family(
        calls={
            "call": "<tool_call>\n<function=$name>\n$arguments</function>\n</tool_call>",
            "separator": "\n",
            "style": T,
            "parameter": "<parameter=$key>\n$value\n</parameter>\n",
        }
    ),
    "glm": family(
        calls={
            "call": "<tool_call>$name\n$arguments</tool_call>",
            "separator": "\n",
            "style": T,
            "parameter": "<arg_key>$key</arg_key>\n<arg_value>$value</arg_value>\n",
        }
    ),
    "dsml": family(
        calls={
            "begin": "<｜DSML｜function_calls>\n",
            "call": '<｜DSML｜invoke name="$name">\n$arguments</｜DSML｜invoke>\n',
            "end": "</｜DSML｜function_calls>",
            "style": T,
            "parameter": '<｜DSML｜parameter name="$key" string="$is_string">$value</｜DSML｜parameter>\n',
        }
    ),
    "k3": family(
        ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        calls={
            "begin": "<|open|>tools<|sep|>",
            "call": '<|open|>call tool="$name" index="$number"<|sep|>$arguments<|close|>call<|sep|>',
            "end": "<|close|>tools<|sep|>",
            "style": T,
            "parameter": '<|open|>argument key="$key" type="$type"<|sep|>$value<|close|>argument<|sep|>',
        },
        content_begin="<|open|>response<|sep|>",
        content_end="<|close|>response<|sep|>",
    ),
    "lfm2": family(
        None,
        calls={
            "begin": "<|tool_call_start|>[",
            "call": "$name($arguments)",
            "separator": ", ",
            "end": "]<|tool_call_end|>",
            "style": P,
            "parameter": "$key=$value",
            "parameter_separator": ", ",
        },
    ),
    "gemma4": family(
        None,
        calls={
            "call": "<|tool_call>call:$name{$arguments}<tool_call|>",
            "style": G,
            "parameter": "$key:$value",
            "parameter_separator": ",",
        },
    ),
    "oss": HARMONY,
    "r7b": family(
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        calls={
            "begin": "<|START_ACTION|>[\n    ",
            "call": '{"tool_call_id": "$index", "tool_name": "$name", "parameters": $arguments}',
            "separator": ",\n    ",
            "end": "\n]<|END_ACTION|>",
            "style": J,
        },
        content_begin="<|START_RESPONSE|>",
        content_end="<|END_RESPONSE|>",
    ),
    "apertus": family(
        None,
        calls={
            "begin": "<|tools_prefix|>[",
            "call": '{"$name": $arguments}',
            "separator": ", ",
            "end": "]<|tools_suffix|>",
            "style": J,
        },
    ),
    "m3": family(
        ("<mm:think>", "</mm:think>"),
        calls={
            "begin": "]<]minimax[>[<tool_call>\n",
            "call": ']<]minimax[>[<invoke name="$name">$arguments]<]minimax[>[</invoke>\n',
            "end": "]<]minimax[>[</tool_call>",
            "style": N,
            "parameter": "]<]minimax[>[<$key>$value]<]minimax[>[</$key>",
        },
    ),
    "pyth": family(
        None,
        calls={
            "begin": "[",
            "call": "$name($arguments)",
            "separator": ", ",
            "end": "]",
            "style": P,
            "parameter": "$key=$value",
            "parameter_separator": ", ",
            "is_whole_answer": True,
            "optional_begins": ["<|python_start|>", "<|python_tag|>"],
        },
        noise=["<|python_end|>"],
    ),
}


def with_calls_of(name: str) -> generation_pb2.AnswerSyntax:
    """A family's calls, without thoughts."""
    return generation_pb2.AnswerSyntax(calls=FAMILIES[name].calls)


HERMES, LLAMA3, MISTRAL = map(with_calls_of, ("hermes", "llama3", "nemo"))


def with_thoughts(
    syntax: generation_pb2.AnswerSyntax, reasoning: generation_pb2.ReasoningFormat.ValueType
) -> generation_pb2.AnswerSyntax:
    """The syntax of an answer that may have such thoughts, between `<think>` and `</think>`."""
    made = generation_pb2.AnswerSyntax()
    made.CopyFrom(syntax)
    if reasoning:
        made.thought.begin, made.thought.end = "<think>", "\n</think>\n\n"
    return made


RIGHT: Final[Mapping[str, list[str]]] = {
    "hermes": [
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        'hi\n<tool_call>{"name":"now","arguments":{}}</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "just text",
    ],
    "llama3": [
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        '<|python_tag|>{"name": "now", "parameters": {}}',
        "hello",
    ],
    "nemo": [
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]'
    ],
    "devstral": ['[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}'],
    "small32": ['[TOOL_CALLS]get_weather[CALL_ID]aB3dEf6h9[ARGS]{"city": "Paris"}'],
    "kimi": [
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>'
    ],
    "coder": [
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPa <b> ris\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=unit>\nc\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        'Sure.\n<tool_call>\n<function=get_weather>\n<parameter=where>\n{"lat": 1.5, "ok": true}\n</parameter>\n<parameter=city>\nx\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>',
    ],
    "glm": [
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    ],
    "dsml": [
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n<｜DSML｜parameter name="opt" string="false">null</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    ],
    "k3": [
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|open|>argument key="days" type="integer"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        "<|open|>response<|sep|>hello<|close|>response<|sep|>",
    ],
    "lfm2": [
        '<|tool_call_start|>[get_weather(city="Paris", days=3), now()]<|tool_call_end|>',
        "<|tool_call_start|>[get_weather(tags=['a', \"b\"], city='x', where={'lat': 1.5})]<|tool_call_end|>",
    ],
    "gemma4": [
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,unit:<|"|>c<|"|>,tags:[<|"|>a<|"|>],where:{lat:1,ok:true}}<tool_call|>',
        "<|tool_call>call:now{}<tool_call|>",
    ],
    "oss": [
        '<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        "<|channel|>final<|message|>hello",
        " to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.now json<|message|>{}<|call|>",
    ],
    "r7b": [
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}\n]<|END_ACTION|>',
        "<|START_RESPONSE|>hello<|END_RESPONSE|>",
    ],
    "apertus": ['<|tools_prefix|>[{"get_weather": {"city": "Paris"}}, {"now": {}}]<|tools_suffix|>'],
    "m3": [
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[<item>b]<]minimax[>[</item>]<]minimax[>[</tags>]<]minimax[>[<where>]<]minimax[>[<lat>1.5]<]minimax[>[</lat>]<]minimax[>[</where>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>'
    ],
    "pyth": ['[get_weather(city="Paris"), now()]', "hello [1]"],
}

FUNCTIONS: Final = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"type": "string", "enum": ["c", "f"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "where": {
                "type": "object",
                "properties": {"lat": {"type": "number"}, "ok": {"type": "boolean"}},
                "required": ["lat"],
                "additionalProperties": False,
            },
            "opt": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}


def calls_of(name: str, **fields: Any) -> generation_pb2.ToolCallsConstraint:
    """A constraint to calls of `FUNCTIONS` in the way of a family."""
    functions = [
        generation_pb2.FunctionSchema(name=name, parameters=json.dumps(schema))
        for name, schema in FUNCTIONS.items()
    ]
    return generation_pb2.ToolCallsConstraint(functions=functions, syntax=FAMILIES[name], **fields)
