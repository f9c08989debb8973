"""OpenAI's client over the HTTP port that is published, undisturbed and while a worker is killed."""

from __future__ import annotations

import asyncio

import openai
import pytest
from chaos.workload import PROMPTS, countdown_text
from harness.client import MODEL, Client
from harness.http_client import HttpClient, openai_client

from compose.engine import Compose
from compose.faults import Fault, inflict
from compose.load import Answers

STREAMS = 6
FAULT_S = 5.0


@pytest.fixture
async def http_port(stack: Compose) -> int:
    return int((await stack("port", "gateway", "8080")).rpartition(":")[2])


async def ask(sdk: openai.AsyncOpenAI, start: int, end: int, begun: asyncio.Event | None = None) -> str:
    """The text of a streamed countdown; `begun` is set with its first part."""
    stream = await sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"Count down from {start} to {end}."}],
        temperature=0,
        max_tokens=300,
        stream=True,
    )
    text = ""
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        if text and begun is not None:
            begun.set()
    return text


async def test_the_gateway_is_ready_and_refuses_strangers(http_port: int, admin_key: str) -> None:
    assert (await HttpClient(http_port, "").get("/readyz")).status == 200
    assert (await HttpClient(http_port, "").get("/v1/models")).status == 401
    (model,) = (await HttpClient(http_port, admin_key).get("/v1/models")).json()["data"]
    assert model["id"] == MODEL


async def test_answers_are_those_of_grpc(http_port: int, admin_key: str, expected: Answers) -> None:
    async with openai_client(http_port, admin_key) as sdk:
        for start, end in expected:
            assert await ask(sdk, start, end) == countdown_text(start, end)


@pytest.mark.timeout(300)
async def test_streams_over_http_are_whole_though_a_worker_is_killed(
    http_port: int, admin_key: str, stack: Compose, client: Client
) -> None:
    worker = (await stack.containers("worker"))[0]
    begun = asyncio.Event()

    async def moment() -> None:
        await begun.wait()

    async with openai_client(http_port, admin_key) as sdk, asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(sdk, *PROMPTS[i % 2], begun)) for i in range(STREAMS)]
        await inflict(Fault.KILL, stack, worker, FAULT_S, moment)
    assert [task.result() for task in asked] == [countdown_text(*PROMPTS[i % 2]) for i in range(STREAMS)]
    await worker.until_healthy(90.0)
    await client.until_idle()
