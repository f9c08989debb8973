"""Bodies of embeddings and of reranking, and their answers."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.vectors import Vector, packed
from inferflux.gateway.http.errors.errors import missing
from inferflux.gateway.request.embeddings import Embedded
from inferflux.v1 import embedding_pb2, generation_pb2, inference_pb2

from .answers import Json
from .text_bodies import DocumentBody, EmbeddingsBody, InputText, RerankBody

EMBEDDINGS_NAMES: Mapping[str, str] = {"inputs": "input"}


def to_embed(body: EmbeddingsBody) -> embedding_pb2.EmbedRequest:
    """Raises:
    InvalidArgument: dimensions or priority is no number that can be.
    """
    request = embedding_pb2.EmbedRequest(
        model=body.model, truncate=bool(body.truncate), priority=body.priority or 0
    )
    if body.dimensions is not None:
        request.dimensions = _positive(body.dimensions, "dimensions")
    for each in _inputs(body.input):
        if isinstance(each, list):
            request.inputs.add(token_ids=inference_pb2.TokenIds(ids=each))
        else:
            request.inputs.add(text=each)
    return request


def _inputs(given: InputText | list[int] | list[InputText | list[int]]) -> Iterator[str | list[int]]:
    """A text and a list of token ids are one input."""
    if not isinstance(given, list):
        yield _input_text(given)
        return
    ids = [each for each in given if isinstance(each, int)]
    if ids:
        yield ids
    for each in given:
        if isinstance(each, list):
            yield each
        elif not isinstance(each, int):
            yield _input_text(each)


def _input_text(given: InputText) -> str:
    """Raises:
    InvalidArgument: an object has neither of both.
    """
    if isinstance(given, str):
        return given
    if (given.prompt_string is None) == (given.content is None):
        raise InvalidArgument("an input has one of prompt_string and content", field="input")
    return given.prompt_string or "".join(part.text for part in given.content or ())


def of_embedded(embedded: Embedded, body: EmbeddingsBody) -> Json:
    is_base64 = body.encoding_format == "base64"

    def spelled(vector: Vector) -> object:
        return base64.b64encode(packed(vector)).decode() if is_base64 else vector.tolist()

    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": spelled(vector)}
            for i, vector in enumerate(embedded.vectors)
        ],
        "model": embedded.model,
        "usage": _usage(embedded.usage),
    }


def to_rerank(body: RerankBody) -> embedding_pb2.RerankRequest:
    """Raises:
    InvalidArgument: top_n is no number that can be.
    """
    request = embedding_pb2.RerankRequest(
        model=body.model,
        query=body.query,
        documents=[_text(document) for document in _documents(body)],
        truncate=bool(body.truncate),
        priority=body.priority or 0,
    )
    if body.top_n is not None:
        request.top_n = _positive(body.top_n, "top_n")
    return request


def _documents(body: RerankBody) -> Sequence[str | DocumentBody]:
    """Raises:
    InvalidArgument: there is not one of documents and texts.
    """
    if body.texts is None and body.documents is None:
        raise missing("documents")
    if body.texts is not None and body.documents is not None:
        raise InvalidArgument("texts: documents is given, too", field="texts")
    return body.documents or body.texts or []


def of_rerank(answer: embedding_pb2.RerankResponse, body: RerankBody) -> Json | list[Json]:
    results: list[Json] = []
    if body.texts is not None:
        for result in answer.results:
            told = {"text": body.texts[result.index]} if body.return_text else {}
            results.append({"index": result.index, "score": result.score} | told)
        return results
    for result in answer.results:
        one: Json = {"index": result.index, "relevance_score": result.score}
        if body.return_documents:
            one["document"] = {"text": _text(_documents(body)[result.index])}
        results.append(one)
    return {"object": "list", "model": answer.model, "results": results, "usage": _usage(answer.usage)}


def _text(document: str | DocumentBody) -> str:
    return document if isinstance(document, str) else document.text


def _positive(value: int, field: str) -> int:
    if value < 1:
        raise InvalidArgument(f"{field} must be at least 1, not {value}", field=field)
    return value


def _usage(usage: generation_pb2.Usage) -> Json:
    return {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
