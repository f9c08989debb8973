# ruff: noqa: RUF001
"""Right answers of every family, and whether the constraint of their tools lets them through whole.

    python -m benchmarks.right_answers [--misses] [NAME ...]

Answers come from two places. Each chat template of ../shared/data/chat-templates renders conversations with
known calls; what it adds to the prompt, less the end of the turn, is a right answer. The package
`canitoolcall` has recorded answers. Every answer is tried under each constraint that a client could ask for
and that it obeys, with markers that are text and with markers that are control tokens. NAME: only answers
whose names begin so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
from llguidance import LLMatcher, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

from inferflux.common.contract.requests.answer_spelling import control_texts
from inferflux.common.text.chat_templates.probe import prefix_of, reasoning_of, tool_support
from inferflux.common.text.chat_templates.templates import ChatTemplate, TemplateError, TemplateRefusedError
from inferflux.common.text.constraints.checking import ConstraintError
from inferflux.common.text.constraints.compiling import grammar_of
from inferflux.gateway.request.tools import functions_of
from inferflux.v1 import generation_pb2, inference_pb2

Json = Any

TEMPLATES: Final = Path(__file__).parents[2] / "shared/data/chat-templates"
FIXTURES: Final = resources.files("canitoolcall") / "_data" / "fixtures"
_TOKENS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
USER: Final = {"role": "user", "content": "Hi"}

_PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "x": {"type": "number"},
    "b": {"type": "boolean"},
    "tags": {"type": "array"},
    "where": {"type": "object"},
}
TOOLS: Final[list[Json]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "The weather.",
            "parameters": {"type": "object", "properties": properties, "required": []},
        },
    }
    for name, properties in (("get_weather", _PROPERTIES), ("get_weather_2", _PROPERTIES), ("now", {}))
]
_CALLS: Final[Mapping[str, Sequence[tuple[str, dict[str, Any]]]]] = {
    "one": [("get_weather", {"city": "Paris"})],
    "two": [("get_weather", {"city": "Paris"}), ("get_weather_2", {"city": "Rome", "days": 3})],
    "every type": [
        (
            "get_weather",
            {"city": "a", "days": 3, "x": 1.5, "b": True, "tags": ["q", 1], "where": {"a": {"b": [1, "z"]}}},
        )
    ],
    "another order": [("get_weather", {"tags": [], "b": False, "city": "Paris", "days": -3, "where": {}})],
    "unicode": [("get_weather", {"city": "Zürich 東京 🌸"})],
    "quotes": [("get_weather", {"city": "a \"b\" 'c' \\d"})],
    "lines": [("get_weather", {"city": "def f():\n    return 1\n\nx"})],
    "none": [("now", {})],
    "none and some": [("now", {}), ("get_weather", {"city": "x"})],
    "markers": [
        (
            "get_weather",
            {"city": 'a <tool_call> </tool_call> [TOOL_CALLS] <think> </parameter> {"name": } ] x'},
        )
    ],
    "an empty text": [("get_weather", {"city": ""})],
    "a number as text": [("get_weather", {"city": "123"})],
}
_THOUGHT, _SAID = "The user asks.\nI call it.", "I look it up."
# What ends a turn, where a message of calls is not followed by what follows one of text.
# Of fixtures that show slips of models, which readers forgive.
_NOT_RIGHT = {"truncated", "malformed"}
_ENDS = ("<EOS>", "<|eom_id|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "<｜hy_eos:opensource｜>")

# The template of a fixture's model: the first whose word is in the model's name.
_OF_MODELS: Mapping[str, Sequence[tuple[str, str]]] = {
    "deepseek": [
        ("V4.1", "V4.1"),
        ("V4", "deepseek-ai-DeepSeek-V4"),
        ("V3.2", "deepseek-ai-DeepSeek-V3.2"),
        ("V3.1", "deepseek-ai-DeepSeek-V3.1"),
        ("", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"),
    ],
    "gemma4": [("", "google-gemma-4-31B-it")],
    "glm": [("4.5", "GLM-4.6"), ("", "GLM-4.7-Flash")],
    "gpt-oss": [("", "openai-gpt-oss-120b")],
    "kimi": [("K3", "Kimi-K3"), ("K2.6", "Kimi-K2-Thinking"), ("", "moonshotai-Kimi-K2")],
    "llama": [("Llama-4", "pythonic"), ("", "meta-llama-Llama-3.3-70B-Instruct")],
    "mistral": [
        ("7B", "mistralai-Mistral-Nemo-Instruct-2407"),
        ("3.2", "Mistral-Small-3.2-24B-Instruct-2506"),
        ("", "mistralai-Ministral-3-14B-Reasoning-2512"),
    ],
    "qwen3-hermes": [("", "Qwen-Qwen3-0.6B")],
    "qwen3-xml": [("Coder", "Qwen3-Coder"), ("", "Qwen3.5-4B")],
}
# Llama 4 writes calls as Python does; no template here is its.
PYTHONIC: Final = generation_pb2.AnswerSyntax(
    calls=generation_pb2.CallSyntax(
        begin="[",
        call="$name($arguments)",
        separator=", ",
        end="]",
        style=generation_pb2.ARGUMENT_STYLE_PYTHON,
        parameter="$key=$value",
        parameter_separator=", ",
        is_whole_answer=True,
        optional_begins=["<|python_start|>", "<|python_tag|>"],
    ),
    noise=["<|python_end|>"],
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A right answer.

    Attributes:
        name: of the template, or of the fixture's family, and of the case.
        prompt: what it follows.
        calls: of functions, with their arguments.
        said: its content and its thought, which may have markers that mean nothing.
        has_content: whether it is more than thoughts and calls.
    """

    name: str
    syntax: generation_pb2.AnswerSyntax
    tools: Sequence[Json]
    prompt: str
    text: str
    calls: Sequence[tuple[str, Json]]
    said: Sequence[str]
    has_content: bool


@cache
def template(name: str) -> ChatTemplate:
    """The template of a published model.

    Raises:
        FileNotFoundError: it is not there.
    """
    source = (TEMPLATES / f"{name}.jinja").read_text()
    return ChatTemplate(source, tokens=_TOKENS, max_rendered_bytes=1 << 20)


@cache
def syntax_of(name: str) -> generation_pb2.AnswerSyntax:
    """How answers to a template are written; raises as `template`."""
    return tool_support(template(name)).syntax


def template_names() -> list[str]:
    return sorted(path.stem for path in TEMPLATES.glob("*.jinja")) if TEMPLATES.is_dir() else []


def own_answers(name: str) -> Iterator[Answer]:
    """Yield what a template itself writes for known calls; nothing where it has no tools."""
    support = tool_support(template(name))
    if not support.is_usable:
        return
    for as_text in (False, True):
        n_found = 0
        for case, calls in _CALLS.items():
            for before in ("", "content", "thought"):
                found = _written(name, support.syntax, calls, as_text=as_text, before=before)
                if found is None:
                    continue
                n_found += 1
                prompt, text = found
                label = f"{name}: {case}{' after ' if before else ''}{before}"
                yield Answer(label, support.syntax, TOOLS, prompt, text, calls, (), before == "content")
        if n_found:
            return  # the template takes objects


def _written(
    name: str,
    syntax: generation_pb2.AnswerSyntax,
    calls: Sequence[tuple[str, Json]],
    *,
    as_text: bool,
    before: str,
) -> tuple[str, str] | None:
    """The prompt and the answer; None where the template does not show all of it."""
    message: Json = {
        "role": "assistant",
        "content": _SAID if before == "content" else "",
        "tool_calls": [
            {
                "type": "function",
                "id": f"functions.{called}:{i}" if "Kimi" in name else f"abc123de{i}",
                "function": {"name": called, "arguments": json.dumps(given) if as_text else given},
            }
            for i, (called, given) in enumerate(calls)
        ],
    }
    if before == "thought":
        message |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), _THOUGHT)
    found = _answer_of(template(name), syntax, message)
    if found is None or any(called not in found[1] for called, _ in calls):
        return None
    prompt, text = found
    if before and (_SAID if before == "content" else _THOUGHT) not in text:
        return None
    is_open = reasoning_of(syntax, prompt) == generation_pb2.REASONING_FORMAT_OPEN
    if is_open and syntax.thought.end.strip() not in text:
        return None  # a conversation is shown without the thoughts that an answer begins with
    return found


def _answer_of(
    made: ChatTemplate, syntax: generation_pb2.AnswerSyntax, message: Mapping[str, Any]
) -> tuple[str, str] | None:
    """The prompt, and the answer as the template writes it, without the end of its turn."""
    try:
        prompt = made.render([USER], TOOLS)
        text = made.render([USER, message], TOOLS)
        said = made.render([USER, {"role": "assistant", "content": "QZ"}], TOOLS)
    except (TemplateError, TemplateRefusedError):
        return None
    n = next(
        (i for i, (a, b) in enumerate(zip(prompt, text, strict=False)) if a != b), min(len(prompt), len(text))
    )
    if not text.startswith(prompt):
        begin = text.rfind("<", 0, n)
        n = begin if begin > text.rfind(">", 0, n) else n
    answer, end = text[n:], said.partition("QZ")[2]
    last = (syntax.calls.end or syntax.calls.call.rpartition("$arguments")[2]).strip()
    for i in range(len(end)):  # what ends a message is no part of it
        cut = answer.removesuffix(end[i:])
        if cut != answer and cut.rstrip().endswith(last):
            answer = cut
            break
    for marker in _ENDS:
        answer = answer.partition(marker)[0]
    ends_thought = syntax.thought.end.strip()
    if ends_thought and answer.startswith(ends_thought):  # which the prompt may end with
        is_over = prompt.rstrip().endswith(ends_thought)
        return prompt, (answer.removeprefix(ends_thought) if is_over else answer).rstrip()
    return text[:n], answer.rstrip()


def fixtures() -> Iterator[Json]:
    """Recorded answers as `canitoolcall` has them, with the prompt's end and the family's markers."""
    for family in sorted(filter(lambda one: one.is_dir(), FIXTURES.iterdir()), key=str):
        models = json.loads((family / "family.json").read_text())
        prompts = {one["repo"]: one.get("default_generation_prompt") for one in models["reference_models"]}
        for file in sorted(family.iterdir(), key=str):
            if file.name.endswith(".jsonl"):
                for line in file.read_text().splitlines():
                    fixture = json.loads(line)
                    fixture["markers"] = models["markers"]
                    prompt = fixture.get("generation_prompt") or prompts.get(fixture["models"][0]) or ""
                    fixture["prompt"] = prompt
                    yield fixture


def syntax_for(fixture: Mapping[str, Any]) -> generation_pb2.AnswerSyntax:
    """How the model of a fixture writes; raises as `template`."""
    model = fixture["models"][0]
    name = next(name for word, name in _OF_MODELS[fixture["family"]] if word in model)
    if name == "pythonic":
        return PYTHONIC
    if name != "V4.1":
        return syntax_of(name)
    made = generation_pb2.AnswerSyntax()
    made.CopyFrom(syntax_of("deepseek-ai-DeepSeek-V4"))
    for field in ("begin", "end", "call", "parameter"):
        text = getattr(made.calls, field).replace("｜DSML｜", "｜DSML｜ ").replace("tool_calls", "calls")
        setattr(made.calls, field, text)
    return made


def recorded_answers() -> Iterator[Answer]:
    """Yield those fixtures that are right: whole, and with calls that match the schemas of their tools."""
    for fixture in fixtures():
        if "expected_error" in fixture or not fixture["tools"] or _NOT_RIGHT & {*fixture["tags"]}:
            continue
        expected = fixture["expected"]
        calls = [(call["name"], call["arguments"]) for call in expected["tool_calls"]]
        schemas = {one["function"]["name"]: one["function"].get("parameters") for one in fixture["tools"]}
        if all(jsonschema_rs.is_valid(schemas[name] or {}, given) for name, given in calls):
            yield Answer(
                fixture["id"],
                syntax_for(fixture),
                fixture["tools"],
                fixture["prompt"],
                fixture["raw_output"],
                calls,
                [*filter(None, (expected["content"], expected["reasoning_content"]))],
                bool((expected["content"] or "").strip()),
            )


def constraints(answer: Answer) -> Iterator[tuple[str, generation_pb2.ToolCallsConstraint]]:
    """The constraints that a client could ask for, and that the answer obeys, by their names."""
    tools = [
        inference_pb2.Tool(
            name=one["function"]["name"], parameters=json.dumps(one["function"].get("parameters"))
        )
        for one in answer.tools
    ]
    functions, _ = functions_of(tools)
    base = generation_pb2.ToolCallsConstraint(
        functions=functions,
        syntax=answer.syntax,
        reasoning=reasoning_of(answer.syntax, answer.prompt),
        prefix=prefix_of(answer.syntax, answer.prompt),
    )

    def made(**fields: Any) -> generation_pb2.ToolCallsConstraint:
        constraint = generation_pb2.ToolCallsConstraint(**fields)
        kept = generation_pb2.ToolCallsConstraint()
        kept.CopyFrom(base)
        if constraint.functions:
            del kept.functions[:]
        kept.MergeFrom(constraint)
        return kept

    yield "auto", made()
    if len(answer.calls) <= 1:
        yield "single", made(is_single=True)
    if answer.calls and not answer.has_content:
        yield "required", made(is_required=True)
        if len({name for name, _ in answer.calls}) == 1:
            named = [one for one in functions if one.name == answer.calls[0][0]]
            yield "named", made(is_required=True, functions=named)
        object_ = generation_pb2.StructuredConstraint(json_schema='{"type":"object","required":["zz"]}')
        yield "or a format", made(content=object_)


class Vocabulary:
    """A vocabulary of bytes, of control tokens, and of texts that are one token."""

    def __init__(self, controls: Sequence[str], texts: Sequence[str]) -> None:
        marks = [*controls, *texts]
        # An end of the generation comes last.
        self._marks = {text: 256 + i for i, text in enumerate(marks)}
        self._pieces = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or "(?!)")
        self._controls = {*controls}
        self.eos_token_id = 256 + len(marks)
        self.bos_token_id = None
        self.tokens = [bytes([i]) for i in range(256)]
        self.tokens += [b"\xff" * (text in self._controls) + text.encode() for text in marks]
        self.tokens.append(b"\xff<end>")
        self.special_token_ids = [*(256 + i for i in range(len(controls))), self.eos_token_id]
        self.tokenizer = LLTokenizer(TokenizerWrapper(self))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())

    def control(self, text: str) -> int | None:
        """The control token that is spelled so."""
        return self._marks[text] if text in self._controls else None

    def ids(self, text: str, values: Sequence[str] = ()) -> list[int]:
        """Token ids of a text. Markers within values are text: the model means no structure."""
        spelled = [(one, json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1]) for one in values]
        said = dict.fromkeys(itertools.chain.from_iterable(spelled))
        plain = [found.span() for one in said if one for found in re.finditer(re.escape(one), text)]
        ids: list[int] = []
        at = 0
        for found in self._pieces.finditer(text):
            if any(begin <= found.start() and found.end() <= end for begin, end in plain):
                continue
            ids += [*text[at : found.start()].encode(), self._marks[found[0]]]
            at = found.end()
        return [*ids, *text[at:].encode()]

    def text(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        parts = [self.tokens[i].removeprefix(b"\xff") if i > 255 else bytes([i]) for i in ids]
        return b"".join(parts).decode("utf-8", "replace")


_vocabulary = cache(Vocabulary)
_MARKER = re.compile(r"\]<\]\w+\[>\[|<[^<>\s$]*>|\[[^\[\]\s$]*\]")


def vocabulary_of(syntax: generation_pb2.AnswerSyntax, *, has_controls: bool) -> Vocabulary:
    """One with tokens for the syntax's markers. What ends a generation is a control token always."""
    found = [one for one in control_texts(syntax) if _MARKER.fullmatch(one) and one != "[]"]
    controls = [one for one in found if has_controls or one in _ends(syntax)]
    texts = () if has_controls else (one for one in control_texts(syntax) if one not in controls)
    return _vocabulary(tuple(controls), tuple(texts))


def _ends(syntax: generation_pb2.AnswerSyntax) -> list[str]:
    """Markers that end a message for good."""
    return [one for one in syntax.channels.ends if one not in syntax.thought.end]


def ends_of(vocabulary: Vocabulary, syntax: generation_pb2.AnswerSyntax) -> AbstractSet[int]:
    """Control tokens that end a generation."""
    return {token for one in _ends(syntax) if (token := vocabulary.control(one)) is not None}


def matcher_of(calls: generation_pb2.ToolCallsConstraint, *, has_controls: bool) -> LLMatcher | str:
    """At the beginning of an answer; why there is none. It is shared: work on a copy."""
    return _matcher(calls.SerializeToString(deterministic=True), has_controls)


@cache
def _matcher(constraint: bytes, has_controls: bool) -> LLMatcher | str:
    calls = generation_pb2.ToolCallsConstraint.FromString(constraint)
    vocabulary = vocabulary_of(calls.syntax, has_controls=has_controls)
    ends = ends_of(vocabulary, calls.syntax)
    made = generation_pb2.StructuredConstraint(tool_calls=calls)
    try:
        grammar = grammar_of(made, vocabulary.control, ends)
    except ConstraintError as error:
        return str(error)
    matcher = LLMatcher(vocabulary.tokenizer, grammar, log_level=0)
    prefix = [] if calls.syntax.HasField("channels") else vocabulary.ids(calls.prefix)
    if not matcher.is_error() and prefix:
        matcher.consume_tokens(prefix)
    return matcher.get_error() if matcher.is_error() else matcher


def why_stopped(answer: Answer, calls: generation_pb2.ToolCallsConstraint, *, has_controls: bool) -> str:
    """Where the constraint does not let the answer through; "" if it does."""
    made = matcher_of(calls, has_controls=has_controls)
    if isinstance(made, str):
        return f"it does not compile: {made[:300]}"
    matcher = made.deep_copy()
    vocabulary = vocabulary_of(answer.syntax, has_controls=has_controls)
    ends = ends_of(vocabulary, answer.syntax)
    ids = vocabulary.ids(answer.text, [*answer.said, *_texts([given for _, given in answer.calls])])
    while ids and ids[-1] in ends:
        ids.pop()
    taken = matcher.try_consume_tokens(ids)
    if matcher.is_error():
        return f"an error: {matcher.get_error()[:300]}"
    if taken < len(ids):
        return (
            f"{vocabulary.text(ids[max(taken - 60, 0) : taken])!r} >|< {vocabulary.text(ids[taken:])[:60]!r}"
        )
    return "" if matcher.is_accepting() else f"{vocabulary.text(ids[-60:])!r} is no end"


def _texts(value: Json) -> Iterator[str]:
    """All texts in a value."""
    if isinstance(value, str):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(one)


def is_json_in_another_order(answer: Answer) -> bool:
    """Return whether its arguments are JSON in another order than the schema's, which constraints keep."""
    is_json = answer.syntax.calls.style == generation_pb2.ARGUMENT_STYLE_JSON
    return is_json and ": another order" in answer.name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of answers' names")
    parser.add_argument(
        "--misses", action="store_true", help="list answers that do not get through, and where"
    )
    arguments = parser.parse_args()
    own = [answer for name in template_names() for answer in own_answers(name)]
    others = [answer for answer in own if is_json_in_another_order(answer)]
    ordered = [answer for answer in own if not is_json_in_another_order(answer)]
    sources: dict[str, Iterable[Answer]] = {"templates": ordered}
    sources |= {"templates, JSON in another order": others, "canitoolcall": recorded_answers()}
    counts: Counter[tuple[str, str, bool]] = Counter()
    for source, answers in sources.items():
        for answer in answers:
            if not answer.name.startswith(tuple(arguments.names) or ""):
                continue
            for (kind, calls), has_controls in itertools.product(constraints(answer), (False, True)):
                why = why_stopped(answer, calls, has_controls=has_controls)
                counts[source, kind, not why] += 1
                counts[source, "all", not why] += 1
                if why and arguments.misses:
                    markers = "tokens" if has_controls else "text"
                    sys.stdout.write(f"{answer.name}: {kind}, markers are {markers}: {why}\n")
    sys.stdout.write("| answers of | constraint | let through |\n|---|---|---|\n")
    for source, kind in dict.fromkeys((source, kind) for source, kind, _ in counts):
        n, missed = counts[source, kind, True], counts[source, kind, False]
        sys.stdout.write(f"| {source} | {kind} | {n} of {n + missed} ({n / (n + missed):.1%}) |\n")


if __name__ == "__main__":
    main()
