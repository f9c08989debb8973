"""Fields of OpenAI's API that are served with some of their values only. Pure.

A field that is not known is ignored, as OpenAI's API does. A known one with a value that would change the
answer, or what becomes of it, is refused by its name: the client would not notice that it was ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferflux.gateway.http.errors.errors import unsupported
from inferflux.gateway.http.front.bodies import Body


@dataclass(frozen=True, slots=True)
class Served:
    """The values of a field that are served.

    Attributes:
        values: that may be given; null always may.
        why: what is told of any other.
    """

    values: Sequence[Any] = ()
    why: str = "it is not supported"


Table = Mapping[str, Served]

_MODERATION = "it is not supported: guardrails are set by administrators"

CHAT: Table = {
    "audio": Served(why="answers are text: it is not supported"),
    "modalities": Served((["text"],), "only ['text'] is supported"),
    "moderation": Served(why=_MODERATION),
    "web_search_options": Served(why="it is not supported: nothing is searched for"),
}

RESPONSE: Table = {
    "background": Served((False,), "only false is supported"),
    "context_management": Served(([],)),
    "conversation": Served(why="nothing is stored: send the whole conversation as input"),
    "max_completion_tokens": Served(why="it is not supported: use max_output_tokens"),
    "max_tokens": Served(why="it is not supported: use max_output_tokens"),
    "messages": Served(why="it is not supported: use input"),
    "moderation": Served(why=_MODERATION),
    "n": Served((1,), "a response has one choice: only 1 is supported"),
    "previous_response_id": Served(why="nothing is stored: send the whole conversation as input"),
    "prompt": Served(why="there are no stored prompts: send instructions and input"),
    "response_format": Served(why="it is not supported: use text.format"),
    "truncation": Served(("disabled", "auto"), "only 'disabled' and 'auto' are supported"),
}

GENERATE: Table = {
    "best_of": Served((1,), "there is one choice: only 1 is supported"),
    "echo": Served((False,), "only false is supported: /v1/completions echoes"),
    "max_completion_tokens": Served(why="it is not supported: use max_tokens"),
    "n": Served((1,), "there is one choice: only 1 is supported"),
    "suffix": Served(("",), "it is not supported: /v1/completions fills gaps"),
    "tool_choice": Served(("auto", "none"), "it is not supported: use /v1/chat/completions"),
    "tools": Served(([],), "they are not supported: use /v1/chat/completions"),
    "top_logprobs": Served(why="it is not supported: logprobs is the number of alternatives"),
}

_MESSAGE_FORMAT = "it is not supported: use output_config.format"
# Of fronts in which another field of the API says the same.
MESSAGE: Table = {
    "chat_template_kwargs": Served(({},), "it is not supported: use thinking"),
    "enable_thinking": Served(why="it is not supported: use thinking"),
    "max_completion_tokens": Served(why="it is not supported: use max_tokens"),
    "n": Served((1,), "a message is one: only 1 is supported"),
    "reasoning_effort": Served(why="it is not supported: use output_config.effort"),
    "response_format": Served(why=_MESSAGE_FORMAT),
    "stop": Served(([],), "it is not supported: use stop_sequences"),
    "structured_outputs": Served(why=_MESSAGE_FORMAT),
}

OLLAMA: Table = {
    "chat_template_kwargs": Served(({},), "it is not supported: use think"),
    "enable_thinking": Served(why="it is not supported: use think"),
    "max_completion_tokens": Served(why="it is not supported: use options.num_predict"),
    "max_tokens": Served(why="it is not supported: use options.num_predict"),
    "n": Served((1,), "an answer is one: only 1 is supported"),
    "reasoning_effort": Served(why="it is not supported: use think"),
    "response_format": Served(why="it is not supported: use format"),
    "structured_outputs": Served(why="it is not supported: use format"),
    "tool_choice": Served(("auto",), "it is not supported: the model chooses"),
}

# What a response can include. Reasoning is an item's plain text: what is sent back of it needs no encryption.
# The others are of hosted tools, of which nothing is called, or repeat what was sent.
INCLUDED = (
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)


def check_served(body: Body, table: Table) -> None:
    """Refuse values that are not served.

    Args:
        table: by the field's path in the body.

    Raises:
        InvalidArgument: naming the first such field.
    """
    for path, served in table.items():
        value = _value(body, path)
        if value is not None and not any(_is_same(value, one) for one in served.values):
            raise unsupported(path, served.why)


def check_stream(body: Body) -> None:
    """Check `stream_options`, which only a stream has.

    Raises:
        InvalidArgument: naming it.
    """
    if _value(body, "stream_options") is not None and not _value(body, "stream"):
        raise unsupported("stream_options", "it is for streams: set stream to true, or leave it out")


def _value(body: Body, path: str) -> Any:
    value: Any = body
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _is_same(value: Any, other: Any) -> bool:
    """1 is not True, but 1.0."""
    return isinstance(value, bool) is isinstance(other, bool) and bool(value == other)
