"""Bodies of OpenAI's API as they come. Other fields are ignored; null is as good as absent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from inferflux.gateway.http.bodies import Body, Int32, Items

# OpenAI's is signed, ours is not.
Seed = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
Choices = Annotated[int, Field(ge=1, le=128)]


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class StructuredOutputs(Body):
    """vLLM's field, and `lark`."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Items[str] | None = None
    grammar: str | None = None
    lark: str | None = None


class JsonSchema(Body):
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class ResponseFormat(Body):
    type: str
    json_schema: JsonSchema | None = None


class SamplingBody(Body):
    """What all bodies that generate have in common. The last group is not OpenAI's: it has our own names,
    and llama.cpp's."""

    model: str
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    # Values are numbers; checked one by one, as `Items` are.
    logit_bias: dict[str, Any] | None = None
    seed: Seed | None = None
    stop: str | Items[str] | None = None
    service_tier: str | None = None

    priority: Int32 | None = None
    top_k: Int32 | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    penalty_last_n: Int32 | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: Int32 | None = None
    dry_penalty_last_n: Int32 | None = None
    dry_sequence_breakers: Items[str] | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    top_n_sigma: float | None = None
    stop_token_ids: Items[Int32] | None = None
    ignore_eos: bool | None = None
    speculation: str | None = None
    max_reasoning_tokens: Int32 | None = None
    # As llama.cpp's server and vLLM name it.
    thinking_budget_tokens: Int32 | None = None
    thinking_token_budget: Int32 | None = None
    skip_answer_cache: bool | None = None
    adapter: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None


class GenerationBody(SamplingBody):
    """What chats and completions have in common."""

    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: Int32 | None = None


class Part(Body):
    type: str
    text: str | None = None


class ImageUrl(Body):
    url: str
    detail: str | None = None


class InputAudio(Body):
    data: str
    format: str


class ChatPart(Part):
    """Of a message's content in a chat."""

    image_url: ImageUrl | None = None
    input_audio: InputAudio | None = None


class InputPart(Part):
    """Of a message's content in a response."""

    image_url: str | None = None
    detail: str | None = None
    input_audio: InputAudio | None = None
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None


class CalledFunction(Body):
    name: str
    arguments: str | None = None


class CalledTool(Body):
    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None


class FunctionBody(Body):
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(FunctionBody):
    """Of a chat, with a function in it; of a response, with the function's fields."""

    type: str
    function: FunctionBody | None = None


class ChosenFunction(Body):
    name: str


class ToolChoiceBody(Body):
    type: str
    function: ChosenFunction | None = None
    name: str | None = None


class Message(Body):
    role: str
    content: str | Items[ChatPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Items[CalledTool] | None = None
    reasoning_content: str | None = None
    function_call: Any = None


class ChatBody(GenerationBody):
    """Of POST /v1/chat/completions."""

    messages: Items[Message]
    max_completion_tokens: Int32 | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    tools: Items[ToolBody] | None = None
    tool_choice: str | ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None

    # Served with some values only: `served.CHAT`.
    functions: Any = None
    function_call: Any = None
    modalities: Items[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    prediction: Any = None
    moderation: Any = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    store: bool | None = None


class CompletionBody(GenerationBody):
    """Of POST /v1/completions."""

    prompt: str | Items[str] | Items[Int32] | Items[Items[Int32]]
    echo: bool | None = None
    logprobs: Int32 | None = None
    suffix: str | None = None
    best_of: Int32 | None = None


class TokenizeBody(Body):
    """Of POST /v1/tokenize."""

    model: str
    prompt: str | None = None
    messages: Items[Message] | None = None
    tools: Items[ToolBody] | None = None


class DetokenizeBody(Body):
    """Of POST /v1/detokenize."""

    model: str
    tokens: Items[Int32]


class EmbeddingsBody(Body):
    """Of POST /v1/embeddings. The last group is not OpenAI's."""

    model: str
    input: str | Items[str] | Items[Int32] | Items[Items[Int32]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int32 | None = None

    truncate: bool | None = None
    priority: Int32 | None = None


class DocumentBody(Body):
    """A document as an object, as Cohere's and Jina's APIs take them."""

    text: str


class RerankBody(Body):
    """Of POST /v1/rerank, in the shape of Jina's API, which llama.cpp's server has."""

    model: str
    query: str
    documents: Items[str | DocumentBody]
    top_n: Int32 | None = None
    return_documents: bool | None = None

    truncate: bool | None = None
    priority: Int32 | None = None


class GenerateBody(SamplingBody):
    """Of POST /generate, and a message of the websocket."""

    model: str = ""
    prompt: str | Items[Int32] | None = None
    messages: Items[Message] | None = None
    max_tokens: Int32 | None = None
    logprobs: Int32 | None = None

    # Of the other bodies; served with some values only: `served.GENERATE`.
    max_completion_tokens: Any = None
    top_logprobs: Any = None
    n: Any = None
    best_of: Any = None
    echo: Any = None
    suffix: Any = None
    tools: Any = None
    tool_choice: Any = None


class InputItem(Body):
    """A message, a call, a call's output, or reasoning."""

    type: str | None = None
    role: str | None = None
    content: str | Items[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Items[Part] | None = None


class TextFormat(Body):
    type: str
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(Body):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesBody(SamplingBody):
    """Of POST /v1/responses."""

    input: str | Items[InputItem]
    instructions: str | None = None
    max_output_tokens: Int32 | None = None
    top_logprobs: Int32 | None = None
    text: TextOptions | None = None
    metadata: dict[str, str] | None = None
    include: Items[str] | None = None
    tools: Items[ToolBody] | None = None
    tool_choice: str | ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Int32 | None = None
    stream_options: StreamOptions | None = None

    # Served with some values only: `served.RESPONSE`.
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    context_management: Any = None
    prompt: Any = None
    reasoning: ReasoningOptions | None = None
    store: bool | None = None
    truncation: str | None = None
    moderation: Any = None
    # Of chats.
    n: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    messages: Any = None
