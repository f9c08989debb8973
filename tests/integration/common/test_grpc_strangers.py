"""What a stranger sends to a server: bytes over a real socket, most of which no gRPC client would send."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.http2_client import Http2Client
from prometheus_client import REGISTRY

from inferflux.common.calls import grpc_metadata
from inferflux.common.calls.calls import CallContext
from inferflux.common.calls.grpc_client import channel
from inferflux.common.calls.grpc_interceptor import RequestInterceptor, current_call
from inferflux.common.calls.grpc_options import receive_limit
from inferflux.common.calls.grpc_rules import MethodRule, rules_of
from inferflux.common.calls.grpc_server import build_server
from inferflux.common.contract import errors
from inferflux.v1 import inference_pb2, inference_pb2_grpc

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
CANCEL, CHAT, RESUME = (f"/{SERVICE.full_name}/{name}" for name in ("Cancel", "Chat", "Resume"))
HEALTH = "/grpc.health.v1.Health/Check"
KEY, OTHER_KEY = "good", "flood"


class Inference(inference_pb2_grpc.InferenceServiceServicer):
    async def Cancel(self, request: inference_pb2.CancelRequest, context: Any) -> Any:  # noqa: N802, ARG002
        assert current_call().caller == Caller(KEY, "inference")
        return inference_pb2.CancelResponse()

    async def Chat(self, request: inference_pb2.ChatRequest, context: Any) -> AsyncIterator[Any]:  # noqa: N802, ARG002
        yield inference_pb2.ChatResponse()

    async def Tokenize(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def Detokenize(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802, ARG002
        raise NotImplementedError
        yield

    async def Resume(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802, ARG002
        raise NotImplementedError
        yield


@dataclass(frozen=True)
class Caller:
    tenant: str
    scope: str
    key_id: str = ""


async def admit(scope: str, context: CallContext) -> Caller:
    """Every key is of a tenant of its own."""
    if (key := context.credential) not in (KEY, OTHER_KEY):
        raise errors.Unauthenticated("unknown key")
    return Caller(key, scope)


class Served:
    def __init__(self, port: int) -> None:
        self.port = port
        self.channel = channel(f"127.0.0.1:{port}")
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def call(self, method: str, data: bytes, key: str = "") -> errors.InferFluxError | bytes:
        """A unary call's answer, or its error."""
        metadata = grpc_metadata.outgoing(api_key=key)
        try:
            send: Any = self.channel.unary_unary(method)
            answer: bytes = await send(data, metadata=metadata, timeout=20)
        except grpc.aio.AioRpcError as error:
            return errors.from_rpc(error)
        return answer

    @asynccontextmanager
    async def stranger(self) -> AsyncIterator[Http2Client]:
        client = await Http2Client.connect(self.port)
        try:
            yield client
        finally:
            client.close()

    async def is_well(self) -> bool:
        answer = await self.health.Check(health_pb2.HealthCheckRequest(), timeout=10)
        return bool(answer.status == health_pb2.HealthCheckResponse.NOT_SERVING)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    rules = dict(rules_of(SERVICE, MethodRule("inference")))
    rules[CHAT] = MethodRule("inference", max_body_bytes=1 << 20)
    del rules[RESUME]
    server = build_server(rules, admit, options=[receive_limit(1 << 20)])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Inference(), server.server)
    port = await server.start("127.0.0.1:0")
    served = Served(port)
    yield served
    await served.channel.close()
    await server.stop(0)


@pytest.mark.parametrize("data", [b"\xff" * 100, b"\x0a\x01a", b"\x12\x00" * 400_000], ids=len)
async def test_a_call_without_a_key_is_refused_whatever_its_body_is(served: Served, data: bytes) -> None:
    for method in (CANCEL, CHAT):
        assert isinstance(await served.call(method, data), errors.Unauthenticated)
    assert isinstance(await served.call(CANCEL, b"\xff", key=KEY), errors.InvalidArgument)
    assert await served.call(CANCEL, b"", key=KEY) == b""


async def test_a_call_without_a_key_is_refused_before_it_sends_a_body(served: Served) -> None:
    async with served.stranger() as stranger:
        stream = stranger.open(CHAT)
        assert (await stranger.ended(stream))["grpc-status"] == "16"


async def test_a_call_that_ends_without_a_request_is_told_so(served: Served) -> None:
    async with served.stranger() as stranger:
        stream = stranger.open(CANCEL, (("x-api-key", KEY),), end=True)
        assert (await stranger.ended(stream))["grpc-status"] == "3"


async def test_a_refused_call_is_told_its_request_id(served: Served) -> None:
    async with served.stranger() as stranger:
        stream = stranger.open(CHAT, (("x-request-id", "mine"),))
        assert (await stranger.ended(stream))["x-request-id"] == "mine"


async def test_bodies_have_a_limit_for_each_method(served: Served) -> None:
    text = inference_pb2.CancelRequest(request_id="x" * (70 << 10)).SerializeToString()
    error = await served.call(CANCEL, text, key=KEY)
    assert isinstance(error, errors.ResourceExhausted)
    assert str(64 << 10) in error.message
    error = await served.call(HEALTH, health_pb2.HealthCheckRequest(service="x" * 5000).SerializeToString())
    assert isinstance(error, errors.ResourceExhausted)
    assert str(4 << 10) in error.message


async def test_a_method_without_a_rule_does_not_exist(served: Served) -> None:
    error = await served.call(RESUME, b"", key=KEY)
    assert "not found" in str(error).lower()


async def test_a_method_with_a_scope_on_a_server_that_admits_none_is_closed() -> None:
    server = build_server(dict(rules_of(SERVICE, MethodRule("inference"))))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Inference(), server.server)
    served = Served(await server.start("127.0.0.1:0"))
    assert isinstance(await served.call(CANCEL, b"", key=KEY), errors.Internal)
    await served.channel.close()
    await server.stop(0)


@pytest.mark.parametrize("path", ["/\udcff\udcfe/x", "\udcff", "", "/", "nothing"])
async def test_a_call_to_an_odd_method_does_not_end_the_server(served: Served, path: str) -> None:
    async with served.stranger() as stranger:
        stream = stranger.open(path, end=True)
        await stranger.ended(stream)
    async with served.stranger() as stranger:
        stream = stranger.open("/no.such/Method", end=True)
        assert (await stranger.ended(stream))["grpc-status"] == "12"
    assert await served.is_well()


async def test_odd_header_bytes_are_counted_and_not_logged_one_by_one(
    served: Served, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    counter = "inferflux_grpc_bad_headers_total"
    before = REGISTRY.get_sample_value(counter) or 0
    async with served.stranger() as stranger:
        for _ in range(20):
            stream = stranger.open(CHAT, (("authorization", "Bearer \udcff\udcfe"),))
            assert (await stranger.ended(stream))["grpc-status"] == "16"
    assert (REGISTRY.get_sample_value(counter) or 0) >= before + 20
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    assert (printed.out + printed.err).count("headers are not UTF-8") <= 1


async def test_health_answers_while_strangers_send_bodies_that_never_end(served: Served) -> None:
    async with served.stranger() as stranger:
        streams = [stranger.open(HEALTH) for _ in range(40)]
        for stream in streams:
            stranger.send(stream, b"\0\0\0\0\x05a")  # one of five bytes
        for _ in range(20):
            assert await served.is_well()
        # The server takes them in an order of its own: any two may be the last ones, which it still holds.
        ended = [asyncio.create_task(stranger.ended(stream)) for stream in streams]
        async with asyncio.timeout(8):  # less than a body's time limit
            while sum(task.done() for task in ended) < len(streams) - 2:
                await asyncio.sleep(0.02)
        assert {task.result()["grpc-status"] for task in ended if task.done()} == {"8"}
        for task in ended:
            task.cancel()


async def test_of_strangers_bodies_that_never_end_two_are_held(served: Served) -> None:
    async with served.stranger() as stranger:
        streams = [stranger.open(HEALTH) for _ in range(8)]
        for stream in streams:
            stranger.send(stream, b"\0\0\0\0\x05a")  # one of five bytes
        ended = [asyncio.create_task(stranger.ended(stream)) for stream in streams]
        async with asyncio.timeout(8):  # less than a body's time limit
            while sum(task.done() for task in ended) < 6:
                await asyncio.sleep(0.02)
        assert all(task.result()["grpc-status"] == "8" for task in ended if task.done())
        for task in ended:
            task.cancel()


async def test_a_tenants_calls_without_a_body_do_not_keep_another_tenant_waiting(served: Served) -> None:
    async with served.stranger() as flood:
        streams = [flood.open(CHAT, (("x-api-key", OTHER_KEY),)) for _ in range(200)]
        for _ in range(20):
            async with asyncio.timeout(1.5):  # less than the grace of the flood's own calls
                assert await served.call(CANCEL, b"", key=KEY) == b""
        assert (await flood.ended(streams[0]))["grpc-status"] == "8"


async def test_a_strangers_calls_without_a_body_do_not_keep_another_service_waiting() -> None:
    rules = dict(rules_of(SERVICE, MethodRule()))  # as policy's for services, which have no key
    server = build_server(rules, options=[receive_limit(1 << 20)])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Inference(), server.server)
    served = Served(await server.start("127.0.0.1:0"))
    async with served.stranger() as flood:
        streams = [flood.open(CHAT) for _ in range(200)]
        for _ in range(20):
            async with asyncio.timeout(1.5):  # less than the grace of the flood's own calls
                assert await served.call(CHAT, b"") == b""
        assert (await flood.ended(streams[0]))["grpc-status"] == "8"
    await served.channel.close()
    await server.stop(0)


async def test_health_watchers_are_bounded_and_do_not_keep_others_from_asking(served: Served) -> None:
    watchers = []
    for _ in range(256):
        watchers.append(served.health.Watch(health_pb2.HealthCheckRequest(), timeout=60))
        await watchers[-1].read()
    newest = served.health.Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert (await newest.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watchers[0].read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not any(watcher.done() for watcher in [*watchers[1:], newest])
    assert await served.is_well()
    for watcher in [*watchers, newest]:
        watcher.cancel()


async def test_a_connection_without_calls_is_closed_soon_and_a_channel_connects_again(served: Served) -> None:
    assert await served.is_well()
    async with served.stranger() as stranger:
        await stranger.settled()
        await stranger.closed(60)
    assert await served.is_well()


async def test_a_call_that_is_not_read_may_send_8_kb(served: Served) -> None:
    async with served.stranger() as stranger:
        await stranger.settled()
        assert stranger.initial_window == 8 << 10


async def test_more_calls_than_are_served_are_refused() -> None:
    started = asyncio.Event()

    async def stuck(scope: str, context: CallContext) -> Caller:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    interceptor = RequestInterceptor(dict(rules_of(SERVICE, MethodRule("inference"))), stuck, max_calls=1)
    server = grpc.aio.server(interceptors=[interceptor])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Inference(), server)
    served = Served(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    first = asyncio.create_task(served.call(CANCEL, b"", key=KEY))
    await asyncio.wait_for(started.wait(), 5)
    assert isinstance(await served.call(CANCEL, b"", key=KEY), errors.ResourceExhausted)
    await server.stop(0)
    await first
    await served.channel.close()


async def test_when_all_calls_are_taken_one_that_waits_to_send_its_body_gives_way() -> None:
    interceptor = RequestInterceptor(dict(rules_of(SERVICE, MethodRule("inference"))), admit, max_calls=80)
    server = grpc.aio.server(interceptors=[interceptor])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Inference(), server)
    served = Served(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    async with served.stranger() as flood:
        for _ in range(80):
            flood.open(CHAT, (("x-api-key", OTHER_KEY),))
        last = flood.open(CHAT, (("x-api-key", "unknown"),))  # the others are taken in when this one is
        assert (await flood.ended(last))["grpc-status"] == "16"
        for _ in range(10):
            async with asyncio.timeout(1.5):
                assert await served.call(CANCEL, b"", key=KEY) == b""
    await server.stop(0)
    await served.channel.close()
