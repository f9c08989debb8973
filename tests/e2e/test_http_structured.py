"""Published schemas over HTTP, through every process; and killed clients, whose slots are free soon."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import jsonschema_rs
import pytest
from harness import published_schemas
from harness.client import MODEL, Client
from harness.http_client import Answer, HttpClient
from harness.schemas import Schema

from inferflux.cli.stack import Stack, StackOptions

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
MAX_TOKENS = 400
ACCEPTED = published_schemas.accepted()
REFUSED = published_schemas.refused()


@pytest.fixture
def http(stack: Stack) -> HttpClient:
    return HttpClient(int(stack.http_url.rpartition(":")[2]), stack.api_key)


async def ask(http: HttpClient, schema: Schema, *, seed: int = 1) -> Answer:
    """One answer at temperature 1 that has to match, by its mask alone."""
    strict = {"name": "x", "schema": schema, "strict": True}
    return await http.post(
        CHAT,
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Give an example."}],
            "response_format": {"type": "json_schema", "json_schema": strict},
            "temperature": 1,
            "seed": seed,
            "max_tokens": MAX_TOKENS,
        },
    )


def finite(text: str) -> float:
    """A number of JSON. `1e999` is one, and Python's `inf` is none."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


async def test_every_answer_matches_its_published_schema(http: HttpClient, client: Client) -> None:
    asked = [(name, seed) for name in ACCEPTED for seed in (1, 2)]
    answers = await asyncio.gather(*(ask(http, ACCEPTED[name], seed=seed) for name, seed in asked))
    n_complete = 0
    for (name, _), answer in zip(asked, answers, strict=True):
        assert answer.status == 200, (name, answer.body)
        choice = answer.json()["choices"][0]
        if choice["finish_reason"] == "length":
            assert answer.json()["usage"]["completion_tokens"] == MAX_TOKENS, name
            continue
        n_complete += 1
        assert choice["finish_reason"] == "stop"
        said = json.loads(choice["message"]["content"], parse_float=finite)
        assert jsonschema_rs.is_valid(ACCEPTED[name], said), (name, said)
    assert n_complete >= 0.8 * len(asked), "the others were cut by max_tokens"
    await client.until_idle()


@pytest.mark.parametrize("name", REFUSED)
async def test_a_published_schema_that_cannot_be_enforced_is_refused_by_its_keyword(
    http: HttpClient, name: str
) -> None:
    schema, said = REFUSED[name]
    answer = await ask(http, schema)
    assert answer.status == 400
    assert said in answer.error["message"]
    assert answer.error["param"].startswith("response_format.json_schema.schema")


async def test_an_answer_that_breaks_what_masks_do_not_hold_is_told_and_not_kept(http: HttpClient) -> None:
    """Its items are two that have to be the same, and must not be."""
    schema = {"type": "array", "items": {"const": 7}, "minItems": 2, "maxItems": 2, "uniqueItems": True}
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    asked = body("Two numbers.", response_format=format_, temperature=0)
    for _ in range(2):
        whole = await http.post(CHAT, asked)
        assert (whole.status, whole.error["code"]) == (422, "schema_mismatch")
        assert whole.headers["x-inferflux-unenforced"] == "uniqueItems (#)"
    streamed = await http.post(CHAT, asked | {"stream": True})
    *_, failure, done = streamed.body.decode().strip().split("\n\n")
    assert (streamed.status, done) == (200, "data: [DONE]")
    assert json.loads(failure.removeprefix("data: "))["error"]["code"] == "schema_mismatch"


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_killed_in_any_phase_leaves_its_slot_free(is_stream: bool) -> None:
    """One slot: a request is queued, in prefill or decoding when its client goes."""
    async with Stack(StackOptions(slots=1, threads=1)) as stack:
        http = HttpClient(int(stack.http_url.rpartition(":")[2]), stack.api_key)
        client = Client(stack.endpoint, stack.api_key)
        for phase in ("decode", "prefill", "queued"):
            await _kill_in(phase, http, client, is_stream=is_stream)
            began = time.monotonic()
            await client.until_idle()
            # An answer goes on for minutes if nothing ends it; a step takes milliseconds.
            assert time.monotonic() - began < 5
        answer = await http.post(CHAT, body("Hello", max_tokens=2))
        assert answer.status == 200
        await client.close()


def body(content: str, **fields: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


async def _kill_in(phase: str, http: HttpClient, client: Client, *, is_stream: bool) -> None:
    endless = body("Hello", ignore_eos=True, stream=is_stream)
    long = body("word " * 350, ignore_eos=True, stream=is_stream)
    async with http.connection() as first, http.connection() as second:
        await first.request("POST", CHAT, long if phase == "prefill" else endless)
        if phase == "prefill":
            await client.until_status(lambda s: s.scheduler.running + s.scheduler.queued > 0)
            return
        await client.until_status(lambda s: s.scheduler.running == 1)
        if phase == "queued":
            await second.request("POST", CHAT, endless)
            await client.until_status(lambda s: s.scheduler.queued == 1)
            second.abort()
            await client.until_status(lambda s: s.scheduler.queued == 0 and s.scheduler.running == 1)
