"""What comes out of a stream, and how a request reaches the queue."""

from __future__ import annotations

import time
from typing import Any

import grpc.aio
import pytest
from harness.gateway import (
    Backend,
    Client,
    GatewayProcess,
    failed,
    finished,
    ids_of,
    queued,
    started,
    text_of,
    tokens,
    until,
)
from harness.policy import PolicyProcess

from inferflux.common.calls import grpc_client, grpc_metadata
from inferflux.common.contract.errors import InvalidArgument, ResourceExhausted, Unavailable, from_rpc
from inferflux.v1 import generation_pb2, inference_pb2


async def test_a_chat_is_answered_token_by_token(client: Client, backend: Backend) -> None:
    stream = client.chat("stream-1")
    job = await backend.job("stream-1")
    await backend.say(job, queued(2), started())
    assert (await stream.next()).queued.position == 2
    assert (await stream.next()).started.worker_id == "w-1"
    for i in range(3):
        await backend.say(job, tokens(i))
        assert list((await stream.next()).token_ids) == [i]
    await backend.say(job, finished(3))
    end = (await stream.rest())[-1]
    assert end.finished.reason == generation_pb2.FINISH_REASON_STOP
    assert end.finished.usage.completion_tokens == 3
    await backend.done("stream-1")


async def test_tokens_that_wait_come_together(client: Client, backend: Backend) -> None:
    stream = client.generate("stream-2")
    job = await backend.job("stream-2")
    await backend.finish(job, n=200)
    chunks = await stream.rest()
    assert ids_of(chunks) == list(range(200))
    assert text_of(chunks) == "".join(f"{i} " for i in range(200))
    assert len(chunks) < 200


async def test_a_job_carries_everything_resolved(client: Client, backend: Backend) -> None:
    params = generation_pb2.GenerationParams(stop=["X"], ignore_eos=True)
    params.sampling.temperature = 0
    before_ms = time.time() * 1000
    stream = client.generate("job-1", token_ids={"ids": [5, 6, 7]}, params=params, priority=3, timeout_s=60)
    job = await backend.job("job-1")
    assert list(job.prompt_token_ids) == [5, 6, 7]
    assert (job.tenant, job.model, job.priority, job.epoch) == ("acme", "demo", 3, 1)
    assert before_ms <= job.enqueued_unix_ms <= time.time() * 1000
    assert before_ms + 55_000 < job.deadline_unix_ms < before_ms + 65_000
    sampling = job.params.sampling
    assert sampling.temperature == 0
    assert (sampling.top_k, sampling.penalty_last_n, sampling.repeat_penalty) == (40, 64, 1.0)
    assert sampling.HasField("seed")
    assert job.params.max_tokens == 512 - 3
    assert (list(job.params.stop), job.params.ignore_eos) == (["X"], True)
    await backend.finish(job, n=1)
    await stream.rest()


async def test_a_call_that_is_sent_again_is_answered_and_another_callers_is_refused(
    gateway: GatewayProcess, policy: PolicyProcess, admin_key: str, client: Client, backend: Backend
) -> None:
    def send(key: str, idempotency_key: str) -> grpc.aio.UnaryStreamCall[Any, Any]:
        sent_as = grpc_client.outgoing(api_key=key, request_id="resent-1")
        request = inference_pb2.GenerateRequest(model="demo", text="Hi")
        metadata = (*sent_as, (grpc_metadata.IDEMPOTENCY_KEY, idempotency_key))
        return gateway.inference.Generate(request, metadata=metadata, timeout=60)

    async def next_ids(call: grpc.aio.UnaryStreamCall[Any, Any]) -> list[int] | None:
        response: Any = await call.read()
        return None if response is grpc.aio.EOF else list(response.chunk.token_ids)

    async def read(call: grpc.aio.UnaryStreamCall[Any, Any]) -> list[int]:
        ids: list[int] = []
        while (more := await next_ids(call)) is not None:
            ids += more
        return ids

    first = send(client.key, "one call")
    job = await backend.job("resent-1")
    await backend.say(job, tokens(0), tokens(1))
    again = send(client.key, "one call")
    begins = await next_ids(again)
    assert begins
    another_key = (await policy.create_key(admin_key)).secret
    for key, idempotency_key in ((client.key, "another"), (another_key, "one call")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(send(key, idempotency_key))
        assert from_rpc(caught.value).reason == "REQUEST_ID_TAKEN"
    await backend.finish(job, n=4, offset=2)
    assert await read(first) == [0, 1, 2, 3]
    assert begins + await read(again) == [0, 1, 2, 3]
    assert await read(send(client.key, "one call")) == [0, 1, 2, 3]


async def test_a_priority_above_the_keys_ceiling_is_capped(
    gateway: GatewayProcess, policy: PolicyProcess, admin_key: str, client: Client, backend: Backend
) -> None:
    """Urgency is granted: a key without a ceiling of its own stays below it, unless it is an admin key."""
    urgent = (await policy.create_key(admin_key, max_priority=9)).secret
    for name, key, asked, given in (
        ("plain", client.key, 100, 4),
        ("low", client.key, -100, -100),
        ("urgent", urgent, 100, 9),
        ("admin", admin_key, 100, 100),
    ):
        stream = Client(gateway, key).generate(f"capped-{name}", priority=asked)
        job = await backend.job(f"capped-{name}")
        assert job.priority == given
        await backend.finish(job, n=1)
        await stream.rest()
        said = grpc_metadata.get(await stream.call.trailing_metadata(), "x-inferflux-priority")
        assert said == ("" if given == asked else str(given))


async def test_a_call_that_announces_more_than_its_request_asks_for_is_refused(
    gateway: GatewayProcess, client: Client
) -> None:
    metadata = grpc_client.outgoing(api_key=client.key, priority=3)
    request = inference_pb2.GenerateRequest(model="demo", text="Hi", priority=2)
    call = gateway.inference.Generate(request, metadata=metadata, timeout=60)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = from_rpc(caught.value)
    assert isinstance(error, InvalidArgument)
    assert (error.reason, error.field) == ("PRIORITIES_DIFFER", "priority")


async def test_a_call_without_deadline_makes_a_job_without_one(client: Client, backend: Backend) -> None:
    stream = client.generate("job-2", timeout_s=None)
    job = await backend.job("job-2")
    assert job.deadline_unix_ms == 0
    await backend.finish(job, n=1)
    await stream.rest()


async def test_max_tokens_is_cut_to_what_the_context_has_left(client: Client, backend: Backend) -> None:
    params = generation_pb2.GenerationParams(max_tokens=32_000)
    stream = client.generate("job-3", token_ids={"ids": [1] * 500}, params=params)
    job = await backend.job("job-3")
    assert job.params.max_tokens == 12
    await backend.finish(job, n=1)
    await stream.rest()


async def test_a_chat_is_rendered_with_the_models_template(client: Client, backend: Backend) -> None:
    messages = [inference_pb2.ChatMessage(role="user", content="hi")]
    chat = client.chat("job-4", messages=messages)
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    complete = client.generate("job-5", text=text)
    as_bytes = client.generate("job-6", text_bytes=text.encode())
    jobs = [await backend.job(f"job-{i}") for i in (4, 5, 6)]
    assert jobs[0].prompt_token_ids == jobs[1].prompt_token_ids == jobs[2].prompt_token_ids
    assert 4 < len(jobs[0].prompt_token_ids) < 20
    for job, stream in zip(jobs, (chat, complete, as_bytes), strict=True):
        await backend.finish(job, n=1)
        await stream.rest()


async def test_the_request_id_comes_back_first(client: Client, backend: Backend) -> None:
    stream = client.generate("id-1")
    metadata = dict(await stream.call.initial_metadata())
    assert metadata["x-request-id"] == "id-1"
    await backend.finish(await backend.job("id-1"), n=1)
    await stream.rest()


async def test_a_failure_ends_the_call_with_its_status(client: Client, backend: Backend) -> None:
    stream = client.generate("fail-1")
    job = await backend.job("fail-1")
    trouble = Unavailable("no worker is left", reason="NO_WORKER", retry_delay_s=2.5)
    await backend.say(job, tokens(0), failed(1, trouble))
    assert list((await stream.until_tokens()).token_ids) == [0]
    error = await stream.error()
    assert isinstance(error, Unavailable)
    assert (error.message, error.reason, error.retry_delay_s) == ("no worker is left", "NO_WORKER", 2.5)
    await backend.done("fail-1")


async def test_the_tokens_of_a_failing_chunk_are_passed_on(client: Client, backend: Backend) -> None:
    stream = client.generate("fail-2")
    job = await backend.job("fail-2")
    last = tokens(0, 2)
    last.failed.CopyFrom(failed(0, ResourceExhausted("no memory", reason="NO_MEMORY")).failed)
    await backend.say(job, last)
    assert list((await stream.until_tokens()).token_ids) == [0, 1, 2]
    assert (await stream.error()).reason == "NO_MEMORY"
    await backend.done("fail-2")


async def test_an_ended_request_leaves_an_audit_line_and_metrics(
    client: Client, backend: Backend, gateway: GatewayProcess
) -> None:
    stream = client.generate("audit-1")
    await backend.finish(await backend.job("audit-1"), n=3)
    await stream.rest()
    await until(lambda: bool(gateway.audit("audit-1")))
    (line,) = gateway.audit("audit-1")
    assert (line["tenant"], line["model"], line["method"], line["outcome"]) == (
        "acme",
        "demo",
        "Generate",
        "stop",
    )
    assert (line["prompt_tokens"], line["completion_tokens"]) == (5, 3)
    assert (line["cached_prompt_tokens"], line["cached_prompt_tier"]) == (2, "host")
    _, metrics = await gateway.get("/metrics")
    for name in (
        'inferflux_time_to_first_token_seconds_count{model="demo"}',
        'inferflux_e2e_request_latency_seconds_count{model="demo"}',
        'inferflux_request_success_total{finished_reason="stop",model="demo"}',
        'inferflux_generation_tokens_total{model="demo"}',
    ):
        assert name in metrics
