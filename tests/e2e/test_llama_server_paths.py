"""Paths of llama.cpp's server and the page at `/`, on all processes."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from inferflux.cli.stack import Stack

pytestmark = pytest.mark.e2e

HELLO = {"role": "user", "content": "Hello"}


async def call(stack: Stack, path: str, body: Any = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {stack.api_key}"}
    async with httpx.AsyncClient(base_url=stack.http_url, headers=headers, timeout=60) as client:
        return await (client.get(path) if body is None else client.post(path, json=body))


async def test_scripts_of_llama_cpps_server_find_their_paths(stack: Stack) -> None:
    assert (await call(stack, "/health")).json() == {"status": "ok", "role": "gateway", "reason": ""}
    props = (await call(stack, "/props")).json()
    assert props["default_generation_settings"]["n_ctx"] > 0
    assert (await call(stack, "/slots")).status_code == 501
    assert "inferflux_" in (await call(stack, "/metrics")).text
    assert props["chat_template"]
    told = (await call(stack, "/tokenizer_info")).json()
    assert told["eos_token"] == props["eos_token"]
    bare = {"prompt": told["eos_token"], "add_special_tokens": False}
    assert len((await call(stack, "/tokenize", bare)).json()["tokens"]) == 1
    rendered = (await call(stack, "/apply-template", {"messages": [HELLO]})).json()["prompt"]
    assert "Hello" in rendered
    unended = {"messages": [HELLO], "add_generation_prompt": False}
    bare = (await call(stack, "/apply-template", unended)).json()["prompt"]
    assert bare
    assert rendered.startswith(bare)
    assert rendered != bare
    n_ctx = props["default_generation_settings"]["n_ctx"]
    long = {"role": "user", "content": "%$7 " * n_ctx}
    assert len((await call(stack, "/tokenize", {"messages": [long]})).json()["tokens"]) > n_ctx
    whole = (await call(stack, "/apply-template", {"messages": [long]})).json()["prompt"]
    assert long["content"].strip() in whole
    count = len((await call(stack, "/tokenize", {"messages": [HELLO]})).json()["tokens"])
    assert len((await call(stack, "/tokenize", unended)).json()["tokens"]) < count
    switched = {"messages": [HELLO], "chat_template_kwargs": {"enable_thinking": True}}
    refused = await call(stack, "/apply-template", switched)
    assert (refused.status_code, refused.json()["error"]["param"]) == (
        400,
        "chat_template_kwargs.enable_thinking",
    )
    tokens = (await call(stack, "/tokenize", {"content": "Once upon a time"})).json()["tokens"]
    pieces = (await call(stack, "/tokenize", {"content": "Once upon a time", "with_pieces": True})).json()
    assert [piece["id"] for piece in pieces["tokens"]] == tokens
    assert (await call(stack, "/detokenize", {"tokens": tokens})).json()["content"] == "Once upon a time"


async def test_a_completion_is_the_same_in_both_apis(stack: Stack) -> None:
    asked = {"prompt": "Once upon a time", "temperature": 0, "n_predict": 12}
    own = (await call(stack, "/v1/completions", asked)).json()
    theirs = (await call(stack, "/completions", asked | {"n_probs": 1, "return_tokens": True})).json()
    assert theirs["content"] == own["choices"][0]["text"]
    assert (theirs["stop_type"], theirs["tokens_predicted"], len(theirs["tokens"])) == ("limit", 12, 12)
    assert len(theirs["completion_probabilities"]) == 12
    streamed = (await call(stack, "/completion", asked | {"stream": True})).text
    assert streamed.count('"stop":true') == 1
    refused = await call(stack, "/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input_suffix")


async def test_a_path_without_its_version_is_the_same(stack: Stack) -> None:
    for path in ("/v1/chat/completions", "/chat/completions"):
        answer = await call(stack, path, {"messages": [HELLO], "temperature": 0, "max_tokens": 8})
        assert answer.json()["choices"][0]["message"]["content"].startswith("Hello")
    listed = (await call(stack, "/models")).json()
    assert listed == (await call(stack, "/v1/models")).json()
    assert [each["name"] for each in listed["models"]] == [each["id"] for each in listed["data"]]


async def test_strangers_see_the_page_and_its_health_alone(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.http_url, timeout=60) as client:
        page = await client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "content-security-policy" in page.headers
        assert (await client.get("/health")).status_code == 200
        for path in ("/props", "/metrics", "/slots", "/models"):
            assert (await client.get(path)).status_code == 401


async def test_a_model_without_sounds_transcribes_nothing(stack: Stack) -> None:
    headers = {"authorization": f"Bearer {stack.api_key}"}
    async with httpx.AsyncClient(base_url=stack.http_url, headers=headers, timeout=60) as client:
        answer = await client.post("/v1/audio/transcriptions", files={"file": ("a.wav", b"RIFF" + bytes(60))})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
