"""Every process, real servers, and a request that kills every engine it reaches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import psutil
import pytest
from harness.children import ENGINE, has_ended
from harness.client import MODEL, Answer, Client, countdown, prompt, undisturbed
from harness.projectors import mixed_projector, picture

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.contract.errors import InvalidArgument, from_rpc
from inferflux.v1 import generation_pb2, inference_pb2

pytestmark = pytest.mark.e2e

_WIDTH = 256
POISONED = Path(__file__).resolve().parents[1] / "harness" / "poisoned"


@pytest.fixture(params=[1, 2])
async def stack(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stack]:
    """One worker or two, whose engines are killed by requests that are called poison, and by some images."""
    mmproj = tmp_path / "mmproj.gguf"
    mmproj.write_bytes(mixed_projector(_WIDTH).data())
    env = {"worker": {"PYTHONPATH": str(POISONED), "INFERFLUX_WORKER_MMPROJ_PATH": str(mmproj)}}
    options = StackOptions(workers=request.param, slots=8, threads=1, service_env=env)
    async with Stack(options) as running:
        yield running


@asynccontextmanager
async def running(
    client: Client, requests: Sequence[inference_pb2.ChatRequest]
) -> AsyncIterator[list[Answer]]:
    """Other requests run inside. In the end each has the answer that it has where nothing dies."""
    expected = await undisturbed(client, requests)
    answers = [Answer() for _ in requests]
    others = [
        asyncio.create_task(client.ask(request, request_id=f"other-{i}", answer=answer))
        for i, (request, answer) in enumerate(zip(requests, answers, strict=True))
    ]
    async with asyncio.timeout(30):
        await answers[0].first_token.wait()
    yield answers
    async with asyncio.timeout(60):
        await asyncio.gather(*others)
    assert [(a.token_ids, a.text) for a in answers] == [(e.token_ids, e.text) for e in expected]
    await client.until_idle()


def engines_of(stack: Stack) -> set[int]:
    """The process ids of all engines of the workers."""
    workers = (process.pid for name, process in stack.processes.items() if name.startswith("worker"))
    return {
        child.pid
        for worker in workers
        for child in psutil.Process(worker).children()
        if ENGINE in child.cmdline() and not has_ended(child)
    }


def about(image: bytes) -> inference_pb2.ChatRequest:
    parts = [
        inference_pb2.ContentPart(image=inference_pb2.ImageInput(data=image)),
        inference_pb2.ContentPart(text="What is this?"),
    ]
    return inference_pb2.ChatRequest(
        model=MODEL,
        messages=[inference_pb2.ChatMessage(role="user", parts=parts)],
        params=generation_pb2.GenerationParams(max_tokens=8),
    )


async def test_a_request_that_kills_every_engine_fails_alone_among_twenty_others(
    stack: Stack, client: Client
) -> None:
    poison = prompt("Poison", max_tokens=64)
    poison.priority = 9  # it goes first, and runs beside others
    async with running(client, [countdown(start, 1) for start in range(30, 20, -1)] * 2) as answers:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.ask(poison, request_id="poison")
        assert from_rpc(caught.value).reason == "POISON_REQUEST"
    assert any(len(a.epochs) > 1 for a in answers), "none of the others was on a dying engine"


async def test_an_image_that_an_engine_crashes_over_costs_one_engine_and_no_other_answer(
    stack: Stack, client: Client
) -> None:
    engines = engines_of(stack)
    async with running(client, [countdown(start, 1) for start in (30, 29, 28, 27)]):
        for name in ("image-1", "image-2"):  # as a client that tries again
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.ask(about(picture(1, width=33, height=33)), request_id=name)
            error = from_rpc(caught.value)
            assert isinstance(error, InvalidArgument)
            assert (error.reason, error.field) == ("POISON_REQUEST", "messages")
            assert "GGML_ASSERT" in error.message
    assert len(engines - engines_of(stack)) == 1
    await client.ask(about(picture(1)))
