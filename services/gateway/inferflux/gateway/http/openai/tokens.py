"""Bodies of tokenize and detokenize, and their answers, in vLLM's shape: OpenAI's API has none."""

from __future__ import annotations

from collections.abc import Mapping

from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import inference_pb2

from . import messages, tools
from .answers import Json
from .prompt_form import form_names, prompt_form
from .text_bodies import DetokenizeBody, TokenizeBody

DETOKENIZE_NAMES: Mapping[str, str] = {"token_ids": "tokens"}


def tokenize_names(body: TokenizeBody) -> Mapping[str, str]:
    """Map fields that have another name inside to the client's names."""
    names = {**tools.field_names(body.tools), **messages.field_names(body.messages or ())}
    return {"text": "prompt", **form_names(body), **names}


def to_tokenize(body: TokenizeBody) -> inference_pb2.TokenizeRequest:
    """Raises:
    InvalidArgument: there is not one of prompt and messages.
    """
    if (body.prompt is None) == (body.messages is None):
        raise InvalidArgument("one of prompt and messages is needed", field="prompt")
    request = inference_pb2.TokenizeRequest(model=body.model)
    if body.prompt is not None:
        request.text = body.prompt
    else:
        given = [messages.to_message(message, i) for i, message in enumerate(body.messages or [])]
        form = prompt_form(body)
        conversation = inference_pb2.Conversation(
            messages=given,
            tools=tools.to_tools(body.tools),
            chat_template_kwargs=form.chat_template_kwargs,
            reasoning_effort=form.reasoning_effort,
            continue_final_message=form.continue_final_message,
            skip_generation_prompt=form.skip_generation_prompt,
        )
        request.conversation.CopyFrom(conversation)
    return request


def of_tokenize(answer: inference_pb2.TokenizeResponse) -> Json:
    ids = list(answer.token_ids)
    return {"count": len(ids), "max_model_len": answer.context_length, "tokens": ids}


def to_detokenize(body: DetokenizeBody) -> inference_pb2.DetokenizeRequest:
    return inference_pb2.DetokenizeRequest(model=body.model, token_ids=body.tokens)
