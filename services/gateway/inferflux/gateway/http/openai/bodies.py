"""Bodies of OpenAI's API as they come. Other fields are ignored; null is as good as absent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from inferflux.gateway.http.front.bodies import Body, Int32, Items

# OpenAI's is signed, ours is not.
Seed = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
Choices = Annotated[int, Field(ge=1, le=128)]
# It may be left out, or null: then the default one is meant.
ModelName = Annotated[str, BeforeValidator(lambda name: "" if name is None else name)]


Verbosity = Literal["low", "medium", "high"]


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
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
    strict: bool | None = None


class ResponseFormat(Body):
    type: str
    json_schema: JsonSchema | None = None
    # llama.cpp's, TGI's and others' place for it.
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    value: dict[str, Any] | None = None


class OwnFields(Body):
    """Fields of generating bodies of every API that are ours, vLLM's or llama.cpp's."""

    priority: Int32 | None = None
    top_k: Int32 | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Int32 | None = None
    bad_words: Items[str] | None = None
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
    deterministic: bool | None = None
    max_reasoning_tokens: Int32 | None = None
    # As llama.cpp's server and vLLM name it.
    thinking_budget_tokens: Int32 | None = None
    thinking_token_budget: Int32 | None = None
    skip_answer_cache: bool | None = None
    adapter: str | None = None


class SamplingBody(OwnFields):
    """The fields that all generating bodies of OpenAI's API have. Fields of other servers are kept for
    `fields`."""

    model_config = ConfigDict(extra="allow")

    model: ModelName = ""
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    # Values are numbers; checked one by one, as `Items` are. A list has pairs, as llama.cpp's server has it.
    logit_bias: dict[str, Any] | Items[Any] | None = None
    seed: Seed | None = None
    stop: str | Items[str] | None = None
    service_tier: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None


class GenerationBody(SamplingBody):
    """The fields that chats and completions have in common."""

    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: Int32 | None = None


class Part(Body):
    type: str
    text: str | None = None
    refusal: str | None = None


class ImageUrl(Body):
    url: str
    detail: str | None = None


class InputAudio(Body):
    data: str
    format: str


class ChatPart(Part):
    """A part of a message's content in a chat."""

    image_url: ImageUrl | None = None
    input_audio: InputAudio | None = None


class InputPart(Part):
    """A part of a message's content in a response."""

    image_url: str | None = None
    detail: str | None = None
    input_audio: InputAudio | None = None
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None


class CalledFunction(Body):
    name: str
    arguments: str | dict[str, Any] | None = None


class CalledCustom(Body):
    name: str
    input: str


class CalledTool(Body):
    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


class FunctionBody(Body):
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | bool | None = None
    strict: bool | None = None


class Grammar(Body):
    syntax: str | None = None
    definition: str | None = None


class CustomFormat(Grammar):
    """The form of what a custom tool takes; a chat has the grammar in it."""

    type: str
    grammar: Grammar | None = None


class CustomBody(Body):
    """A tool that takes a text."""

    name: str | None = None
    description: str | None = None
    format: CustomFormat | None = None


class ToolBody(FunctionBody):
    """A tool of a chat, with a function or a custom tool in it; of a response, with its fields."""

    type: str
    function: FunctionBody | None = None
    custom: CustomBody | None = None
    format: CustomFormat | None = None

    @property
    def as_custom(self) -> CustomBody | ToolBody:
        """The part that says what the custom tool is."""
        return self.custom or self

    @property
    def called(self) -> str:
        """The name that calls have; empty where it has none."""
        return (self.custom or self.function or self).name or ""


class ChosenFunction(Body):
    name: str


class AllowedTools(Body):
    mode: str | None = None
    tools: Items[ToolBody] | None = None


class ToolChoiceBody(AllowedTools):
    """A tool of a chat or of a response, or those that may be called."""

    type: str
    function: ChosenFunction | None = None
    custom: ChosenFunction | None = None
    name: str | None = None
    allowed_tools: AllowedTools | None = None


class Message(Body):
    role: str
    content: str | Items[ChatPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Items[CalledTool] | None = None
    reasoning_content: str | None = None
    # OpenRouter's and vLLM's newer name of it.
    reasoning: str | None = None
    refusal: str | None = None
    # OpenAI's API had it before `tool_calls`.
    function_call: CalledFunction | None = None


class ChatBody(GenerationBody):
    """The body of POST /v1/chat/completions."""

    messages: Items[Message]
    max_completion_tokens: Int32 | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    tools: Items[ToolBody] | None = None
    tool_choice: str | ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None

    # OpenAI's API had them before tools.
    functions: Items[FunctionBody] | None = None
    function_call: str | ChosenFunction | None = None

    # Served with some values only: `served.CHAT`.
    modalities: Items[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None
    reasoning_effort: str | None = None

    # vLLM's and llama.cpp's: how the chat template renders.
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = None

    verbosity: Verbosity | None = None
    prediction: dict[str, Any] | None = None
    store: bool | None = None


class CompletionBody(GenerationBody):
    """The body of POST /v1/completions."""

    prompt: str | Items[str] | Items[Int32] | Items[Items[Int32]]
    echo: bool | None = None
    logprobs: Int32 | None = None
    suffix: str | None = None
    best_of: Int32 | None = None


class GenerateBody(SamplingBody):
    """The body of POST /generate, and a message of the websocket."""

    model: ModelName = ""
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
    id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Items[Part] | None = None
    # Of reasoning, of a custom tool's call, of a shell's.
    summary: Items[Part] | None = None
    input: str | None = None
    action: dict[str, Any] | None = None


class TextFormat(Body):
    type: str
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningOptions(Body):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesBody(SamplingBody):
    """The body of POST /v1/responses."""

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

    # As chats have them.
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None

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
