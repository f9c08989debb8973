"""Bodies of llama.cpp's server as they come, in its own API."""

from __future__ import annotations

from inferflux.gateway.http.front.bodies import Body, Int32, Items
from inferflux.gateway.http.openai.bodies import SamplingBody
from inferflux.gateway.http.openai.text_bodies import TokenizeBody


class PromptText(Body):
    prompt_string: str
    # Images and sounds in base64, for the markers of the text.
    multimodal_data: Items[str] | None = None


Text = str | PromptText
Prompt = Text | Items[Int32] | Items[Text | Items[Int32]]


class CompletionBody(SamplingBody):
    """The body of POST /completion. `openai.fields` has the names `n_predict` and `n_probs`."""

    prompt: Prompt
    max_tokens: Int32 | None = None
    logprobs: Int32 | None = None
    return_tokens: bool | None = None
    response_fields: Items[str] | None = None


class ExtraContext(Body):
    text: str
    filename: str | None = None


class InfillBody(SamplingBody):
    """The body of POST /infill."""

    input_prefix: str
    input_suffix: str
    input_extra: Items[ExtraContext] | None = None
    prompt: str | None = None
    max_tokens: Int32 | None = None
    logprobs: Int32 | None = None
    return_tokens: bool | None = None
    response_fields: Items[str] | None = None


class ContentBody(TokenizeBody):
    """The body of POST /tokenize: `content` as llama.cpp's server takes it, or what /v1/tokenize takes."""

    content: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None

    add_special_tokens: bool | None = None
