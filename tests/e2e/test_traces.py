"""One trace from a client over gateway and scheduler to the engine, whatever happens on the way."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.children import ENGINE, child_of
from harness.client import Answer, Client, countdown, prompt
from harness.traces import Caller, events, trace

from inferflux.cli.stack import Stack, StackOptions
from inferflux.v1 import inference_pb2

pytestmark = pytest.mark.e2e

CHAT = "chat inferflux-demo"
GENERATE = "generate inferflux-demo"
YIELD, RESUME, PREEMPT = (f"scheduler.fairness.{what}" for what in ("yield", "resume", "preempt"))


TIMESLICE = 32


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces") / "traces.jsonl"


@pytest.fixture(scope="module")
async def stack(demo_model: Path, path: Path) -> AsyncIterator[Stack]:
    """Every service writes its spans to one file; one request runs at a time."""
    env = {
        "INFERFLUX_TRACE_FILE": str(path),
        "INFERFLUX_FAIRNESS_PREEMPT": "true",
        "INFERFLUX_FAIRNESS_TIMESLICE": str(TIMESLICE),
    }
    async with Stack(StackOptions(model=demo_model, slots=1, env=env)) as running:
        yield running


async def ask(
    client: Client,
    caller: Caller,
    request: inference_pb2.ChatRequest | inference_pb2.GenerateRequest,
    answer: Answer | None = None,
) -> Answer:
    """A request of a client that traces."""
    answer = answer or Answer()
    metadata = [*client.metadata(), ("traceparent", caller.traceparent)]
    call = (
        client.inference.Chat(request, metadata=metadata)
        if isinstance(request, inference_pb2.ChatRequest)
        else client.inference.Generate(request, metadata=metadata)
    )
    try:
        async for response in call:
            answer.add(response.chunk)
    finally:
        call.cancel()
    return answer


async def test_gateway_scheduler_and_worker_are_in_the_clients_trace(client: Client, path: Path) -> None:
    caller, other = Caller(), Caller()
    answer = await ask(client, caller, countdown(9))
    await ask(client, other, prompt(max_tokens=3))
    spans = await trace(path, caller.trace_id, CHAT, "scheduler.queue", "worker.run")
    chat, queue, run = spans[CHAT], spans["scheduler.queue"], spans["worker.run"]
    assert [s["service"] for s in (chat, queue, run)] == ["gateway", "scheduler", "worker"]
    assert chat["parent_id"] == caller.span_id
    assert queue["parent_id"] == run["parent_id"] == chat["span_id"]
    assert "first_token" in events(run)
    assert run["attributes"]["gen_ai.usage.output_tokens"] == len(answer.token_ids)
    assert chat["attributes"]["gen_ai.usage.output_tokens"] == len(answer.token_ids)
    assert chat["attributes"]["gen_ai.request.model"] == run["attributes"]["gen_ai.request.model"]
    ids = {s["attributes"]["inferflux.request_id"] for s in (chat, queue, run)}
    assert len(ids) == 1
    others = await trace(path, other.trace_id, GENERATE, "scheduler.queue", "worker.run")
    assert others["worker.run"]["parent_id"] == others[GENERATE]["span_id"]


async def test_a_retry_is_in_the_trace(stack: Stack, client: Client, path: Path) -> None:
    caller, answer = Caller(), Answer()
    asking = asyncio.create_task(ask(client, caller, prompt(max_tokens=300), answer))
    async with asyncio.timeout(30):
        await answer.first_token.wait()
    worker = stack.processes["worker-0"].pid
    engine = child_of(worker, ENGINE)
    assert engine is not None
    os.kill(engine, signal.SIGKILL)
    async with asyncio.timeout(60):
        await asking
    assert len(answer.token_ids) == 300
    names = (GENERATE, "scheduler.queue", "scheduler.queue", "scheduler.retry", "worker.run", "worker.run")
    spans = await trace(path, caller.trace_id, *names)
    assert spans["scheduler.retry"]["attributes"]["inferflux.reason"] == "engine_died"
    assert spans["scheduler.retry"]["parent_id"] == spans[GENERATE]["span_id"]
    assert spans["worker.run"]["attributes"]["inferflux.epoch"] > 1
    assert spans["worker.run"]["attributes"]["inferflux.outcome"] == "length"


async def test_runs_that_end_and_resume_are_in_the_trace(client: Client, path: Path) -> None:
    callers = Caller(), Caller()
    request = prompt(max_tokens=4 * TIMESLICE)
    await asyncio.gather(*(ask(client, caller, request) for caller in callers))
    for caller in callers:
        spans = await trace(path, caller.trace_id, GENERATE, YIELD, YIELD, RESUME, RESUME, "worker.run")
        assert spans[YIELD]["attributes"]["inferflux.reason"] == "timeslice"
        assert spans[YIELD]["parent_id"] == spans[RESUME]["parent_id"] == spans[GENERATE]["span_id"]
        assert {"yielded", "resumed"} <= set(events(spans["worker.run"]))
        assert "scheduler.retry" not in spans


async def test_who_is_preempted_finds_that_in_the_trace_of_its_own(client: Client, path: Path) -> None:
    slow, urgent, answer = Caller(), Caller(), Answer()
    long = prompt(max_tokens=1500)
    long.priority = 5  # too urgent for timeslices, not too urgent to give way
    asking = asyncio.create_task(ask(client, slow, long, answer))
    async with asyncio.timeout(30):
        await answer.first_token.wait()
    pressing = prompt(max_tokens=8)
    pressing.priority = 9
    await ask(client, urgent, pressing)
    async with asyncio.timeout(60):
        await asking
    mine = await trace(path, slow.trace_id, GENERATE, PREEMPT, RESUME, "worker.run")
    theirs = await trace(path, urgent.trace_id, GENERATE, "worker.run")
    assert (
        mine[PREEMPT]["attributes"]["inferflux.preempted_by"]
        == (theirs[GENERATE]["attributes"]["inferflux.request_id"])
    )
    assert PREEMPT not in theirs
