"""Meanings of the fields of bodies, and an example of each body, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from inferflux.gateway.http.front.bodies import Body
from inferflux.gateway.http.openai import served
from inferflux.gateway.http.openai.bodies import ChatBody, GenerateBody, ResponsesBody

Schema = dict[str, Any]

_MODEL = "inferflux-demo"
_QUESTION = [{"role": "user", "content": "What is the capital of France?"}]

# Of inference, by path.
EXAMPLES: Mapping[str, Schema] = {
    "/v1/chat/completions": {"model": _MODEL, "messages": _QUESTION, "max_tokens": 40},
    "/v1/completions": {"model": _MODEL, "prompt": "Once upon a time", "max_tokens": 40},
    "/v1/responses": {"model": _MODEL, "input": "What is the capital of France?"},
    "/generate": {"prompt": "Once upon a time", "max_tokens": 40, "stream": True},
    "/v1/messages": {"model": _MODEL, "max_tokens": 40, "messages": _QUESTION},
    "/v1/messages/count_tokens": {"model": _MODEL, "messages": _QUESTION},
    "/api/chat": {"model": _MODEL, "messages": _QUESTION},
    "/api/generate": {"model": _MODEL, "prompt": "What is the capital of France?"},
    "/api/embed": {"model": "minilm", "input": ["Berlin is the capital of Germany."]},
    "/api/embeddings": {"model": "minilm", "prompt": "Berlin is the capital of Germany."},
    "/api/show": {"model": _MODEL},
    "/v1/embeddings": {"model": "minilm", "input": ["Berlin is the capital of Germany."]},
    "/v1/rerank": {"model": "reranker", "query": "capital of Germany", "documents": ["Berlin", "Paris"]},
    "/v1/tokenize": {"model": _MODEL, "prompt": "Once upon a time"},
    "/v1/detokenize": {"model": _MODEL, "tokens": [300, 301]},
}

# Of administrators' messages, by field.
_SAMPLES: Mapping[str, Any] = {
    "change": {"high_priority_threshold": 5},
    "worker_id": "worker-0",
    "tenant": "acme",
    "name": "search",
    "key_id": "key_0123456789abcdef",
    "api_key": {"key_id": "key_0123456789abcdef", "name": "search"},
    "update_mask": "name",
    "role": {"name": "reader", "scopes": ["models"]},
    "subject": "tenant:acme",
    "rate_limit": {"subject": "tenant:acme", "requests_per_minute": "60"},
    "guardrails": {"tenant": "acme"},
    "text": "How are you?",
    "model": _MODEL,
    "document": {"format": 1},
}

# By name: a field means the same in every body.
MEANINGS: Mapping[str, str] = {
    "add_generation_prompt": "Whether the prompt ends where an answer begins. [true]",
    "chat_template_kwargs": "Switches of the model's chat template, by name.",
    "continue_final_message": "The last message, of the assistant, is begun. [true, where it is]",
    "enable_thinking": "Whether the model thinks, where its chat template has a switch for it.",
    "adapter": "An adapter of the model, where its name does not say it: model:adapter.",
    "best_of": "The value of n.",
    "context": "An empty list.",
    "context_management": "Conversations are not shortened.",
    "bad_words": "Texts that are not said.",
    "background": "Nothing runs after its call.",
    "deterministic": "The same answer whatever else is cached or runs; slower.",
    "dimensions": "The first numbers of each vector alone, scaled to length 1.",
    "documents": "Up to 2,048 texts, or objects with a text.",
    "dry_allowed_length": "DRY: shorter repetitions are not penalized. [2]",
    "dry_base": "DRY: the base of the penalty, 1 to 100. [1.75]",
    "dry_multiplier": "DRY: the factor of the penalty on prolonged repetitions, 0 to 100. [0]",
    "dry_penalty_last_n": "DRY: recent tokens that it looks at; -1 is the whole context. [64]",
    "dry_sequence_breakers": "DRY: texts over which no repetition goes on.",
    "dynatemp_exponent": "The temperature grows with this power of the entropy. [1]",
    "dynatemp_range": "How far the temperature goes below and above temperature by the entropy. [0]",
    "echo": "Whether the prompt's text precedes the answer.",
    "encoding_format": "float, or base64: 32-bit floats, little-endian. [float]",
    "format": "json, or a JSON schema that the answer matches.",
    "frequency_penalty": "Taken from a token's logit for each time it occurred, -2 to 2. [0]",
    "function_call": "auto, none, or a function's name: tool_choice of older clients.",
    "functions": "Functions as older clients name them; the answer has function_call.",
    "images": "Files in base64.",
    "ignore_eos": "Go on past the model's own end.",
    "include": "What an answer has beside its items: message.output_text.logprobs.",
    "input": "A text, or messages, calls, their outputs and reasoning; to embed: texts, or token ids.",
    "instructions": "A message of the developer before the input.",
    "logit_bias": "Added to logits, -100 to 100, by token id or text; or pairs of both.",
    "keep_alive": "Without effect: models make room when it is needed.",
    "logprobs": "Report log-probabilities: true in a chat, else how many alternatives, 0 to 20.",
    "max_completion_tokens": "At most this many new tokens; wins over max_tokens.",
    "max_output_tokens": "At most this many new tokens; else up to the end of the context.",
    "max_reasoning_tokens": "At most this many tokens of reasoning: then it is closed. -1: no limit.",
    "max_tokens": "At most this many new tokens; else up to the end of the context (16 in completions).",
    "max_tool_calls": "Counts calls of hosted tools, of which there are none.",
    "messages": "The conversation.",
    "metadata": "Texts by name, without effect.",
    "min_p": "Drop tokens less likely than this part of the likeliest one. [0.05]",
    "min_tokens": "Neither an end nor a stop before this many new tokens. [0]",
    "modalities": "Answers are text.",
    "model": "The model's name, as GET /v1/models lists it.",
    "name": "The same as model.",
    "n": "How many answers, at most 128.",
    "options": "Sampling, and num_predict: at most this many new tokens.",
    "output_config": "effort: how much the model thinks; format: a JSON schema that the answer matches.",
    "output_format": "The same as format of output_config.",
    "parallel_tool_calls": "Whether the model may make several calls. [true]",
    "penalty_last_n": "Recent tokens that the penalties look at; -1 is the whole context. [64]",
    "prediction": "Without effect.",
    "presence_penalty": "Taken once from the logit of a token that occurred, -2 to 2. [0]",
    "priority": "-100 to 100; higher is more urgent. Wins over service_tier. [0]",
    "prompt": "A text, or token ids; completions take a list of either.",
    "query": "What the documents are to answer.",
    "reasoning": "effort: how long a model thinks, where its template has a switch for it.",
    "reasoning_effort": "How long a model thinks, where its template has a switch for it.",
    "repetition_penalty": "repeat_penalty over the whole context, as vLLM has it.",
    "raw": "Whether the prompt is continued as it is.",
    "repeat_penalty": "Divides the logits of recent tokens, 0.01 to 10. [1]",
    "response_format": "text, json_object, or json_schema: the answer matches the schema.",
    "return_documents": "Whether results have the documents. [false]",
    "return_text": "Whether results have their texts. [false]",
    "seed": "What is drawn follows from it; with deterministic the same seed gives the same answer.",
    "service_tier": "auto, default, flex or priority: a priority by name.",
    "skip_answer_cache": "Have the answer computed, and do not keep it for others.",
    "speculation": "Where drafts of next tokens come from: off, ngram or draft.",
    "stop": "A text, or up to 16, before which the answer ends.",
    "stop_sequences": "Up to 16 texts, before the first of which the answer ends.",
    "stop_token_ids": "Token ids after which the answer ends, at most 64.",
    "store": "Nothing is stored, whatever it is.",
    "stream": "Answer with events. [false; true for /generate]",
    "stream_options": "include_usage: the stream ends with the usage.",
    "structured_outputs": "One of json, json_object, regex, choice, grammar (GBNF) and lark.",
    "suffix": "What follows the answer, where the vocabulary has tokens to fill gaps.",
    "system": "What the model is told before the messages: a text, or blocks of text.",
    "template": "An empty text.",
    "temperature": "0 is greedy. [0.8]",
    "text": "format: text, json_object, or json_schema.",
    "think": "true, false, low, medium or high, where the model's template has a switch for it.",
    "texts": "`documents` as TEI has them: the answer is a list, each with its index and score.",
    "thinking": "enabled with budget_tokens, adaptive or disabled. [as the model does]",
    "thinking_budget_tokens": "As max_reasoning_tokens.",
    "thinking_token_budget": "As max_reasoning_tokens.",
    "tokens": "Token ids.",
    "tool_choice": "auto, none, required, a tool's name, or allowed_tools: those that may be called.",
    "tools": "Functions, and custom tools, that the model may call.",
    "top_k": "Sample from this many likely tokens; 0 is all. [40]",
    "top_logprobs": "How many alternatives to report of each token, 0 to 20.",
    "top_n_sigma": "Keep logits within this many standard deviations of the largest; 0 keeps all. [0]",
    "top_n": "The best documents alone.",
    "top_p": "Sample from the likeliest tokens that reach this probability. [0.95]",
    "truncate": "Cut what is longer than the context, instead of refusing it. [false]",
    "truncation": "A conversation that is too long is refused.",
    "typical_p": "Sample from tokens of typical information until they reach this probability. [1]",
    "verbosity": "low, medium or high; without effect.",
    "xtc_probability": "XTC: how often it drops the likely tokens but the last of them. [0]",
    "xtc_threshold": "XTC: the probability from which a token is likely. [0.1]",
}

# Of parts of bodies, by their names.
_REFUSED: Mapping[str, Sequence[str]] = {}

_TABLES: Mapping[type[Body], served.Table] = {
    ChatBody: served.CHAT,
    ResponsesBody: served.RESPONSE,
    GenerateBody: served.GENERATE,
}


def described(body: type[Body], schema: Schema) -> Schema:
    """A body's schema with what its fields mean. Fields that are refused whatever they are get left out."""
    table = _TABLES.get(body, {})
    fields: dict[str, Schema] = {}
    for name, given in schema.get("properties", {}).items():
        limit = table.get(name)
        if limit is not None and not limit.values:
            continue
        field = {key: value for key, value in given.items() if key not in ("title", "default")}
        if limit is not None:
            field = {"enum": [*limit.values, None]}
        fields[name] = field | {"description": MEANINGS[name]}
    return schema | {"properties": fields}


def served_alone(name: str, schema: Schema) -> Schema:
    """The schema of a part of bodies, without the fields of it that are always refused."""
    given = schema.get("properties", {})
    kept = {field: of for field, of in given.items() if field not in _REFUSED.get(name, ())}
    return schema | {"properties": kept} if len(kept) < len(given) else schema


def example_of(message: Descriptor) -> Schema:
    """A message of an administrator in protobuf's JSON, with its usual fields."""
    return {field.name: _SAMPLES[field.name] for field in _usual(message.fields)}


def _usual(fields: Sequence[FieldDescriptor]) -> Sequence[FieldDescriptor]:
    return [field for field in fields if field.name in _SAMPLES and field.enum_type is None]
