"""What /openapi.json says of fields and examples."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from inferflux.gateway.grpc.rules import ADMIN_METHODS
from inferflux.gateway.http.anthropic.bodies import MessagesBody, PromptBody
from inferflux.gateway.http.anthropic.request import Prompt, to_request
from inferflux.gateway.http.docs.openapi import document
from inferflux.gateway.http.docs.openapi_fields import EXAMPLES, MEANINGS
from inferflux.gateway.http.front import routes
from inferflux.gateway.http.front.exchange import to_json
from inferflux.gateway.http.ollama import request as ollama
from inferflux.gateway.http.ollama.bodies import (
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaShowBody,
)
from inferflux.gateway.http.openai import (
    bodies,
    chat,
    completions,
    embeddings,
    generate,
    served,
    text_bodies,
    tokens,
)
from inferflux.gateway.http.openai.responses import responses
from inferflux.gateway.http.paths.message_json import parse_message
from inferflux.gateway.http.paths.reading import parse


def fields_of(schema: str) -> dict[str, Any]:
    found: dict[str, Any] = document()["components"]["schemas"][schema]["properties"]
    return found


@pytest.mark.parametrize(
    "body",
    ["ChatBody", "CompletionBody", "ResponsesBody", "GenerateBody", "TokenizeBody", "MessagesBody"],
)
def test_every_field_of_a_body_is_explained(body: str) -> None:
    assert all(field["description"] == MEANINGS[name] for name, field in fields_of(body).items())


def test_fields_that_are_always_refused_are_left_out_and_others_list_what_is_served() -> None:
    fields = fields_of("ChatBody")
    assert not {"audio", "moderation", "web_search_options"} & fields.keys()
    assert fields["modalities"]["enum"] == [["text"], None]
    assert "max_tokens" in fields
    fields = fields_of("ResponsesBody")
    assert fields["truncation"]["enum"] == ["disabled", "auto", None]
    assert not {path for path in served.RESPONSE if path.startswith("max_")} & fields.keys()


def test_each_example_of_inference_can_be_sent() -> None:
    example = {path: to_json(body) for path, body in EXAMPLES.items()}
    chat.to_request(parse(bodies.ChatBody, example["/v1/chat/completions"]))
    completions.to_requests(parse(bodies.CompletionBody, example["/v1/completions"]))
    responses.to_request(parse(bodies.ResponsesBody, example["/v1/responses"]))
    generate.to_request(parse(bodies.GenerateBody, example["/generate"]))
    tokens.to_tokenize(parse(text_bodies.TokenizeBody, example["/v1/tokenize"]))
    tokens.to_detokenize(parse(text_bodies.DetokenizeBody, example["/v1/detokenize"]))
    embeddings.to_embed(parse(text_bodies.EmbeddingsBody, example["/v1/embeddings"]))
    embeddings.to_rerank(parse(text_bodies.RerankBody, example["/v1/rerank"]))
    to_request(messages := parse(MessagesBody, example["/v1/messages"]), Prompt(messages))
    Prompt(parse(PromptBody, example["/v1/messages/count_tokens"])).tokenize_request()
    ollama.chat_request(parse(OllamaChatBody, example["/api/chat"]))
    ollama.generate_request(parse(OllamaGenerateBody, example["/api/generate"]))
    ollama.embed_request(parse(OllamaEmbedBody, example["/api/embed"]))
    ollama.embed_request(parse(OllamaEmbeddingsBody, example["/api/embeddings"]))
    parse(OllamaShowBody, example["/api/show"])
    assert len(example) == 15


def test_each_example_of_administrators_is_a_message_of_its_method() -> None:
    paths = document()["paths"]
    for method in ADMIN_METHODS:
        content = paths[routes.ADMIN[method.name].path]["post"]["requestBody"]["content"]
        example = content["application/json"]["example"]
        message = parse_message(GetMessageClass(method.input_type), json.dumps(example).encode())
        assert bool(example) == bool(message.ByteSize())
