"""Clients that cancel, leave or run out of time: the request is stopped wherever it is."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest
from harness.gateway import Backend, Client, GatewayProcess, finished, ids_of, tokens, until

from inferflux.common.contract.errors import InferFluxError, InvalidArgument, NotFound, from_rpc
from inferflux.v1 import generation_pb2


async def cancel_error(client: Client, request_id: str) -> InferFluxError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.cancel(request_id)
    return from_rpc(caught.value)


def times_cancelled(backend: Backend, request_id: str) -> int:
    return backend.cancelled.count(request_id)


async def test_cancel_ends_the_stream_with_its_reason(client: Client, backend: Backend) -> None:
    stream = client.generate("cancel-1")
    job = await backend.job("cancel-1")
    await backend.say(job, tokens(0))
    await stream.until_tokens()
    backend.known.add("cancel-1")
    await client.cancel("cancel-1")
    assert times_cancelled(backend, "cancel-1") == 1
    await backend.say(job, finished(1, reason=generation_pb2.FINISH_REASON_CANCELLED))
    assert (await stream.rest())[-1].finished.reason == generation_pb2.FINISH_REASON_CANCELLED
    await backend.done("cancel-1")


async def test_cancel_of_an_unknown_or_finished_id_is_not_found(client: Client, backend: Backend) -> None:
    assert isinstance(await cancel_error(client, "cancel-unknown"), NotFound)
    stream = client.generate("cancel-2")
    await backend.finish(await backend.job("cancel-2"), n=1)
    await stream.rest()
    assert isinstance(await cancel_error(client, "cancel-2"), NotFound)


async def test_cancel_of_a_malformed_id_is_refused(client: Client, backend: Backend) -> None:
    error = await cancel_error(client, "inferflux.v1.>")
    assert isinstance(error, InvalidArgument)
    assert error.field == "request_id"


async def test_cancel_reaches_only_the_callers_tenant(
    gateway: GatewayProcess, other_key: str, client: Client, backend: Backend
) -> None:
    stream = client.generate("cancel-3")
    job = await backend.job("cancel-3")
    received: list[str] = []

    async def listen(message: object) -> None:
        received.append(message.subject)  # type: ignore[attr-defined]

    listening = await backend.bus.serve("inferflux.v1.cancel.other.>", listen)
    await backend.bus.flush()
    assert isinstance(await cancel_error(Client(gateway, other_key), "cancel-3"), NotFound)
    await until(lambda: received == ["inferflux.v1.cancel.other.cancel-3"])
    await listening.close()
    await backend.finish(job, n=1)
    assert ids_of(await stream.rest()) == [0]


async def test_a_client_that_leaves_while_queued_is_cancelled(client: Client, backend: Backend) -> None:
    stream = client.generate("gone-1")
    await backend.job("gone-1")
    stream.cancel()
    await until(lambda: times_cancelled(backend, "gone-1") > 0)
    backend.known.add("gone-1")
    await backend.done("gone-1")


async def test_a_client_that_leaves_is_cancelled_again_until_the_scheduler_has_the_job(
    client: Client, backend: Backend
) -> None:
    stream = client.generate("gone-2")
    await backend.job("gone-2")
    stream.cancel()
    await until(lambda: times_cancelled(backend, "gone-2") >= 2)
    backend.known.add("gone-2")
    await until(lambda: times_cancelled(backend, "gone-2") >= 3)
    await backend.done("gone-2")


async def test_a_client_that_leaves_mid_stream_is_cancelled_once(client: Client, backend: Backend) -> None:
    stream = client.generate("gone-3")
    job = await backend.job("gone-3")
    await backend.say(job, tokens(0))
    await stream.until_tokens()
    stream.cancel()
    await until(lambda: times_cancelled(backend, "gone-3") == 1)
    await backend.done("gone-3")


async def test_a_client_that_leaves_after_the_end_cancels_nothing(
    client: Client, backend: Backend, gateway: GatewayProcess
) -> None:
    stream = client.generate("gone-4")
    await backend.finish(await backend.job("gone-4"), n=1)
    await stream.rest()
    stream.cancel()
    await until(lambda: bool(gateway.audit("gone-4")))
    # Cancel notices are sent before the audit line is written, on the connection the next request uses.
    assert isinstance(await cancel_error(client, "gone-4-marker"), NotFound)
    assert times_cancelled(backend, "gone-4") == 0


async def test_a_client_that_leaves_before_it_is_queued_leaves_nothing(
    client: Client, backend: Backend
) -> None:
    """Whenever it leaves on the way in, what got into the queue is cancelled too."""
    for i, delay_s in enumerate((0.0, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005)):
        request_id = f"early-{i}"
        stream = client.generate(request_id)
        await asyncio.sleep(delay_s)
        stream.cancel()
    # Jobs are consumed in order, so one that ends tells that all before it are here.
    last = client.generate("early-last")
    await backend.finish(await backend.job("early-last"), n=1)
    await last.rest()
    queued = [
        request_id
        for request_id in backend.jobs
        if request_id.startswith("early-") and request_id != "early-last"
    ]
    for request_id in queued:
        await until(lambda request_id=request_id: times_cancelled(backend, request_id) > 0)  # type: ignore[misc]
        await backend.done(request_id)


async def test_a_deadline_that_passes_cancels_the_request(
    client: Client, backend: Backend, gateway: GatewayProcess
) -> None:
    stream = client.generate("late-1", timeout_s=0.5)
    job = await backend.job("late-1")
    await backend.say(job, tokens(0))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.rest()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: times_cancelled(backend, "late-1") > 0)
    await until(lambda: bool(gateway.audit("late-1")))
    assert gateway.audit("late-1")[0]["outcome"] == "deadline_exceeded"
    assert gateway.audit("late-1")[0]["completion_tokens"] == 1
    await backend.done("late-1")
