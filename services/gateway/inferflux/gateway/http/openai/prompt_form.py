"""How a body of OpenAI's or vLLM's API has its conversation rendered (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import to_json

from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import tokenizer_pb2

from .bodies import ChatBody, ResponsesBody
from .text_bodies import TokenizeBody


def prompt_form(body: ChatBody | TokenizeBody) -> tokenizer_pb2.RenderChat:
    """The part of a body that says how its prompt is rendered.

    A last message of the assistant is continued, as llama.cpp's server does, unless the body says otherwise.

    Raises:
        InvalidArgument: the prompt shall both continue a message and begin another one.
    """
    if body.continue_final_message and body.add_generation_prompt:
        message = "continue_final_message does not go together with add_generation_prompt"
        raise InvalidArgument(message, field="continue_final_message")
    continues = body.continue_final_message
    if continues is None:
        continues = not body.add_generation_prompt and _ends_begun(body)
    return tokenizer_pb2.RenderChat(
        chat_template_kwargs=switches_of(body),
        reasoning_effort=body.reasoning_effort or "",
        continue_final_message=bool(continues),
        skip_generation_prompt=body.add_generation_prompt is False and not continues,
    )


def switches_of(body: ChatBody | TokenizeBody | ResponsesBody) -> str:
    """Switches of the chat template, as a JSON object; empty where the body has none."""
    switches = dict(body.chat_template_kwargs or {})
    if body.enable_thinking is not None:
        switches["enable_thinking"] = body.enable_thinking
    return to_json(switches).decode() if switches else ""


def form_names(body: ChatBody | TokenizeBody | ResponsesBody) -> Mapping[str, str]:
    """Map fields that have another name inside to the client's names."""
    inside = "chat_template_kwargs.enable_thinking"
    return {} if body.enable_thinking is not None else {"enable_thinking": inside}


def _ends_begun(body: ChatBody | TokenizeBody) -> bool:
    last = body.messages[-1] if body.messages else None
    if last is None or last.role != "assistant" or last.tool_calls or last.function_call:
        return False
    return bool(last.content or last.reasoning_content or last.reasoning)
