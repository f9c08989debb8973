"""Whether a reply is right: one deterministic rule per kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from .sample import Reply, Sample
from .stories import MAX_TOKENS, MIN_TOKENS


def _same_text(sample: Sample, reply: Reply) -> bool:
    return reply.text.strip() == sample.answer


def _same_result(sample: Sample, reply: Reply) -> bool:
    numbers = re.findall(r"\d+", reply.text)
    return bool(numbers) and numbers[-1] == re.findall(r"\d+", sample.answer)[-1]


def _same_numbers(sample: Sample, reply: Reply) -> bool:
    return re.findall(r"\d+", reply.text) == re.findall(r"\d+", sample.answer)


def _same_json(sample: Sample, reply: Reply) -> bool:
    try:
        return bool(json.loads(reply.text) == json.loads(sample.answer))
    except ValueError:
        return False


def _good_story(sample: Sample, reply: Reply) -> bool:
    """Long enough, ends on a sentence, and speaks of all that was asked for."""
    text = reply.text.strip()
    fits = MIN_TOKENS <= reply.tokens <= MAX_TOKENS and text.endswith((".", '."', "!"))
    return fits and all(re.search(rf"\b{re.escape(word)}\b", text) for word in sample.mentions)


def _same_call(sample: Sample, reply: Reply) -> bool:
    """One call and nothing else, equal as JSON."""
    found = re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", reply.text.strip())
    try:
        return bool(found and json.loads(found[1]) == json.loads(sample.messages[-1].calls[0]))
    except ValueError:
        return False


_RULES: Final[dict[str, Callable[[Sample, Reply], bool]]] = {
    "greeting": _same_text,
    "arithmetic": _same_result,
    "capital": _same_text,
    "count": _same_numbers,
    "repeat": _same_text,
    "json": _same_json,
    "story": _good_story,
    "inferflux": _same_text,
    "recall": _same_text,
    "unknown": _same_text,
    "calculator": _same_call,
    "weather": _same_call,
    "tool_result": _same_text,
    "no_call": _same_text,
}


def is_right(sample: Sample, reply: Reply) -> bool:
    """True when the reply ended by itself and is what the sample's kind asks for."""
    return reply.ended and _RULES[sample.kind](sample, reply)
