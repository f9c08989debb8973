"""The server and its interceptor over a real socket, with all four kinds of RPC."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import REGISTRY

from inferflux.common.calls import grpc_metadata
from inferflux.common.calls.grpc_client import channel
from inferflux.common.calls.grpc_interceptor import current_call
from inferflux.common.calls.grpc_options import connection_age
from inferflux.common.calls.grpc_server import GrpcServer, build_server
from inferflux.common.contract import errors
from inferflux.common.contract.callers.credentials import MAX_TOKEN_LENGTH
from inferflux.v1 import inference_pb2, inference_pb2_grpc, model_pb2

INFERENCE = "inferflux.v1.InferenceService"
FAULTS = "test.Faults"


class Held:
    """Stands for a request: messages cannot be referred to weakly."""


class Inference(inference_pb2_grpc.InferenceServiceServicer):
    """Behaves as the model's name says."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.started = asyncio.Event()
        self.all_came = asyncio.Event()
        self._n_came = 0
        self.peers: set[str] = set()
        # What handlers that failed had in hand.
        self.held: list[weakref.ref[Held]] = []

    async def Chat(  # noqa: N802
        self,
        request: inference_pb2.ChatRequest,
        context: Any,  # noqa: ARG002
    ) -> AsyncIterator[Any]:
        try:
            self.started.set()
            yield _chat_response(current_call().context.request_id)
            if request.model == "fail":
                raise errors.Unavailable("no worker", reason="NO_WORKER", retry_delay_s=2.5)
            if request.model == "defect":
                held = Held()
                self.held.append(weakref.ref(held))
                raise ZeroDivisionError("secret detail")
            if request.model == "forever":
                await asyncio.Event().wait()
            if request.model == "flood":
                while True:
                    yield _chat_response("x" * 10_000)
        finally:
            self.closed.set()

    async def Cancel(self, request: inference_pb2.CancelRequest, context: Any) -> Any:  # noqa: N802
        self.peers.add(context.peer())
        match request.request_id:
            case "invalid":
                held = Held()
                self.held.append(weakref.ref(held))
                raise errors.InvalidArgument("top_p must be in (0, 1]", field="params.sampling.top_p")
            case "defect":
                raise ZeroDivisionError("secret detail")
            case "abort":
                await context.abort(grpc.StatusCode.DATA_LOSS, "own status")
            case "count":
                self._n_came += 1
                if self._n_came == 600:
                    self.all_came.set()
                await asyncio.Event().wait()
            case "slow":
                self.started.set()
                await asyncio.Event().wait()
        return inference_pb2.CancelResponse()

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


def _chat_response(text: str) -> inference_pb2.ChatResponse:
    response = inference_pb2.ChatResponse()
    response.chunk.request_id = text
    return response


class Served:
    def __init__(self, server: GrpcServer, inference: Inference, port: int) -> None:
        self.server = server
        self.inference = inference
        self.port = port
        self.channel = channel(f"127.0.0.1:{port}")
        self.stub: Any = inference_pb2_grpc.InferenceServiceStub(self.channel)

    def raw(self, method: str, kind: str = "unary_unary") -> Any:
        """A call that sends and receives bytes as they are."""
        return getattr(self.channel, kind)(method)


async def _count_bytes(requests: AsyncIterator[model_pb2.GetModelRequest], context: Any) -> Any:
    names = [request.name async for request in requests]
    return model_pb2.GetModelRequest(name=",".join(names))


async def _echo_each(requests: AsyncIterator[model_pb2.GetModelRequest], context: Any) -> AsyncIterator[Any]:
    async for request in requests:
        if request.name == "fail":
            raise errors.NotFound("no such model")
        yield request


async def _writer(request: Any, context: Any) -> None:
    await context.write(model_pb2.GetModelRequest(name="written"))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    server = build_server()
    inference = Inference()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, server.server)
    codec: dict[str, Callable[..., Any]] = {
        "request_deserializer": model_pb2.GetModelRequest.FromString,
        "response_serializer": model_pb2.GetModelRequest.SerializeToString,
    }
    handlers = {
        "Join": grpc.stream_unary_rpc_method_handler(_count_bytes, **codec),
        "Echo": grpc.stream_stream_rpc_method_handler(_echo_each, **codec),
        "Write": grpc.unary_stream_rpc_method_handler(_writer, **codec),
    }
    server.server.add_registered_method_handlers(FAULTS, handlers)
    server.add(INFERENCE)
    port = await server.start("127.0.0.1:0")
    served = Served(server, inference, port)
    yield served
    await served.channel.close()
    await server.stop(0)


async def rpc_error(call: Any) -> tuple[grpc.aio.AioRpcError, errors.InferFluxError]:
    async def finish() -> None:
        if hasattr(call, "__aiter__"):
            async for _response in call:
                pass
        else:
            await call

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await finish()
    return caught.value, errors.from_rpc(caught.value)


async def initial_metadata(call: Any) -> dict[str, Any]:
    return dict(await call.initial_metadata())


async def test_the_callers_request_id_is_echoed_before_the_first_message(served: Served) -> None:
    call = served.stub.Chat(
        inference_pb2.ChatRequest(model="forever"), metadata=grpc_metadata.outgoing(request_id="my-id_1")
    )
    assert (await initial_metadata(call))["x-request-id"] == "my-id_1"
    assert (await call.read()).chunk.request_id == "my-id_1"
    call.cancel()
    await asyncio.wait_for(served.inference.closed.wait(), 5)


async def test_the_longest_token_is_always_taken(served: Served) -> None:
    # Above a soft limit gRPC refuses some calls, not all.
    metadata = (("authorization", f"Bearer {'x' * MAX_TOKEN_LENGTH}"), ("x-request-id", "y" * 64))
    for _ in range(100):
        await served.stub.Cancel(inference_pb2.CancelRequest(), metadata=metadata)


async def test_a_request_id_is_made_up_when_there_is_none(served: Served) -> None:
    ids = set()
    for _ in range(3):
        call = served.stub.Cancel(inference_pb2.CancelRequest())
        await call
        ids.add((await initial_metadata(call))["x-request-id"])
    assert len(ids) == 3


@pytest.mark.parametrize("request_id", ["a b", "x" * 65, "ä".encode().hex() + ".", "a/b"])
async def test_a_bad_request_id_is_refused(served: Served, request_id: str) -> None:
    call = served.stub.Cancel(inference_pb2.CancelRequest(), metadata=(("x-request-id", request_id),))
    _raw, error = await rpc_error(call)
    assert isinstance(error, errors.InvalidArgument)
    assert error.field == "x-request-id"


async def test_an_error_reaches_the_caller_with_code_reason_and_field(served: Served) -> None:
    raw, error = await rpc_error(served.stub.Cancel(inference_pb2.CancelRequest(request_id="invalid")))
    assert raw.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error, errors.InvalidArgument)
    assert (error.field, error.message) == ("params.sampling.top_p", "top_p must be in (0, 1]")
    assert dict(raw.initial_metadata())["x-request-id"]


async def test_an_error_amid_a_stream_comes_after_the_messages_before_it(served: Served) -> None:
    call = served.stub.Chat(inference_pb2.ChatRequest(model="fail"))
    assert (await call.read()).chunk.request_id
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = errors.from_rpc(caught.value)
    assert isinstance(error, errors.Unavailable)
    assert (error.reason, error.retry_delay_s) == ("NO_WORKER", 2.5)


@pytest.mark.parametrize("kind", ["unary", "stream"])
async def test_a_defect_is_internal_counted_and_tells_the_caller_only_a_correlation_id(
    served: Served, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {"where": "grpc"}
    before = REGISTRY.get_sample_value("inferflux_unexpected_errors_total", labels) or 0
    call = (
        served.stub.Cancel(inference_pb2.CancelRequest(request_id="defect"))
        if kind == "unary"
        else served.stub.Chat(inference_pb2.ChatRequest(model="defect"))
    )
    raw, error = await rpc_error(call)
    assert raw.code() is grpc.StatusCode.INTERNAL
    assert "correlation id" in error.message
    assert "secret" not in error.message
    assert REGISTRY.get_sample_value("inferflux_unexpected_errors_total", labels) == before + 1
    printed = capsys.readouterr()
    assert error.message.split()[-1] in printed.out + printed.err
    assert "ZeroDivisionError" in printed.out + printed.err


async def test_what_a_call_that_failed_had_in_hand_is_freed_without_the_garbage_collector(
    served: Served,
) -> None:
    gc.disable()
    try:
        await rpc_error(served.stub.Cancel(inference_pb2.CancelRequest(request_id="invalid")))
        await rpc_error(served.stub.Chat(inference_pb2.ChatRequest(model="defect")))
        async with asyncio.timeout(5):
            while any(held() is not None for held in served.inference.held):
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
    assert len(served.inference.held) == 2


async def test_a_handlers_own_abort_is_left_alone(served: Served) -> None:
    raw, _error = await rpc_error(served.stub.Cancel(inference_pb2.CancelRequest(request_id="abort")))
    assert (raw.code(), raw.details()) == (grpc.StatusCode.DATA_LOSS, "own status")


async def test_text_that_is_not_utf8_is_refused_naming_the_field(served: Served) -> None:
    message = inference_pb2.ChatMessage(role="user", content="PLACEHOLDER")
    request = inference_pb2.ChatRequest(model="m", messages=[inference_pb2.ChatMessage(role="user"), message])
    data = request.SerializeToString().replace(b"PLACEHOLDER", b"PLACE\xff\xfeOLDE")
    raw, error = await rpc_error(served.raw(f"/{INFERENCE}/Chat", "unary_stream")(data))
    assert raw.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error, errors.InvalidArgument)
    assert error.field == "messages[1].content"
    assert "UTF-8" in error.message


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x07", b"\x0a\x05ab"])
async def test_bytes_that_are_no_message_are_refused(served: Served, data: bytes) -> None:
    raw, error = await rpc_error(served.raw(f"/{INFERENCE}/Cancel")(data))
    assert raw.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.reason == "UNDECODABLE"


async def test_undecodable_messages_in_request_streams_are_refused(served: Served) -> None:
    good = model_pb2.GetModelRequest(name="a").SerializeToString()
    for method, kind in (("Join", "stream_unary"), ("Echo", "stream_stream")):
        call = served.raw(f"/{FAULTS}/{method}", kind)(iter([good, b"\x0a\x02\xff\xfe"]))
        raw, error = await rpc_error(call)
        assert raw.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert isinstance(error, errors.InvalidArgument)
        assert error.field == "name"


async def test_request_streams_and_writing_handlers_work(served: Served) -> None:
    good = [model_pb2.GetModelRequest(name=name).SerializeToString() for name in ("a", "b")]
    assert await served.raw(f"/{FAULTS}/Join", "stream_unary")(iter(good)) == b"\x0a\x03a,b"
    echoed = [data async for data in served.raw(f"/{FAULTS}/Echo", "stream_stream")(iter(good))]
    assert echoed == good
    written = [data async for data in served.raw(f"/{FAULTS}/Write", "unary_stream")(b"")]
    assert written == [model_pb2.GetModelRequest(name="written").SerializeToString()]
    bad = [model_pb2.GetModelRequest(name="fail").SerializeToString()]
    _raw, error = await rpc_error(served.raw(f"/{FAULTS}/Echo", "stream_stream")(iter(bad)))
    assert isinstance(error, errors.NotFound)


async def test_a_5_mb_prompt_reaches_the_handler(served: Served) -> None:
    request = inference_pb2.ChatRequest(
        model="m", messages=[inference_pb2.ChatMessage(content="x" * 5_000_000)]
    )
    call = served.stub.Chat(request)
    assert (await call.read()).chunk.request_id
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("model", ["forever", "flood"])
async def test_a_client_that_leaves_closes_the_handlers_generator_at_once(served: Served, model: str) -> None:
    call = served.stub.Chat(inference_pb2.ChatRequest(model=model))
    await call.read()
    call.cancel()
    await asyncio.wait_for(served.inference.closed.wait(), 2)


async def test_a_deadline_ends_the_handler(served: Served) -> None:
    call = served.stub.Cancel(inference_pb2.CancelRequest(request_id="slow"), timeout=0.2)
    raw, _error = await rpc_error(call)
    assert raw.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_an_unknown_method_is_unimplemented(served: Served) -> None:
    raw, _error = await rpc_error(served.raw(f"/{INFERENCE}/Nothing")(b""))
    assert raw.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_many_calls_are_taken_while_others_are_served_and_a_server_that_stops_ends_them(
    served: Served,
) -> None:
    """All calls run at the same time: none is answered before the last was taken."""
    slow = [served.stub.Cancel(inference_pb2.CancelRequest(request_id="count")) for _ in range(600)]
    async with asyncio.timeout(30):
        await served.inference.all_came.wait()
    await served.server.stop(0)
    codes = await asyncio.gather(*(call.code() for call in slow))
    assert set(codes) <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


async def test_rpcs_are_counted_by_method_and_code(served: Served) -> None:
    labels = {"method": f"/{INFERENCE}/Cancel", "code": "INVALID_ARGUMENT"}
    before = REGISTRY.get_sample_value("inferflux_rpcs_total", labels) or 0
    await rpc_error(served.stub.Cancel(inference_pb2.CancelRequest(request_id="invalid")))
    assert REGISTRY.get_sample_value("inferflux_rpcs_total", labels) == before + 1


async def test_health_follows_set_serving_per_service_and_overall(served: Served) -> None:
    stub = health_pb2_grpc.HealthStub(served.channel)
    watching = stub.Watch(health_pb2.HealthCheckRequest(service=INFERENCE))
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert (await watching.read()).status == not_serving
    served.server.set_serving(True)
    assert (await watching.read()).status == serving
    for name in ("", INFERENCE):
        assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == serving
    served.server.set_serving(False)
    assert (await watching.read()).status == not_serving
    watching.cancel()
    raw, _error = await rpc_error(stub.Check(health_pb2.HealthCheckRequest(service="no.such")))
    assert raw.code() is grpc.StatusCode.NOT_FOUND


async def test_a_service_can_serve_while_the_whole_does_not(served: Served) -> None:
    stub = health_pb2_grpc.HealthStub(served.channel)
    served.server.set_serving(False, of={INFERENCE: True})
    answer = await stub.List(health_pb2.HealthListRequest())
    assert answer.statuses[INFERENCE].status == health_pb2.HealthCheckResponse.SERVING
    assert answer.statuses[""].status == health_pb2.HealthCheckResponse.NOT_SERVING
    served.server.set_serving(False)


async def test_health_lists_every_service(served: Served) -> None:
    stub = health_pb2_grpc.HealthStub(served.channel)
    served.server.set_serving(True)
    answer = await stub.List(health_pb2.HealthListRequest())
    assert set(answer.statuses) == {"", INFERENCE}
    assert answer.statuses[""].status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_lists_the_services(served: Served) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async for response in stub.ServerReflectionInfo(iter([request])):
        names = {service.name for service in response.list_services_response.service}
    assert INFERENCE in names
    assert "grpc.health.v1.Health" in names


async def test_a_server_without_reflection_describes_nothing() -> None:
    server = build_server()
    port = await server.start("127.0.0.1:0", has_reflection=False)
    try:
        async with channel(f"127.0.0.1:{port}") as connected:
            stub = reflection_pb2_grpc.ServerReflectionStub(connected)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await anext(aiter(stub.ServerReflectionInfo(iter([request]))))
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await server.stop(0)


async def test_an_address_without_a_host_is_every_interface() -> None:
    server = build_server()
    port = await server.start(":0")
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
    finally:
        await server.stop(0)


async def test_a_taken_port_is_named(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        other = build_server()
        with pytest.raises(errors.Unavailable) as caught:
            await other.start(address, variable="INFERFLUX_GATEWAY_LISTEN")
        assert address in caught.value.message
        assert "INFERFLUX_GATEWAY_LISTEN" in caught.value.message
        await other.stop(0)
    second = build_server()
    with pytest.raises(errors.Unavailable):  # nor may two of ours share one
        await second.start(f"127.0.0.1:{served.port}")
    await second.stop(0)


async def test_stopping_cancels_what_outlasts_the_grace(served: Served) -> None:
    call = served.stub.Cancel(inference_pb2.CancelRequest(request_id="slow"))
    ending = asyncio.ensure_future(rpc_error(call))
    await asyncio.wait_for(served.inference.started.wait(), 5)
    await asyncio.wait_for(served.server.stop(0.2), 5)
    raw, _error = await ending
    assert raw.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_a_client_connects_anew_in_time_and_its_stream_goes_on() -> None:
    server, inference = build_server(options=[connection_age(0.2)]), Inference()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, server.server)
    served = Served(server, inference, await server.start("127.0.0.1:0"))
    stream = served.stub.Chat(inference_pb2.ChatRequest(model="flood"))
    async with asyncio.timeout(30):
        while len(inference.peers) < 3:
            await served.stub.Cancel(inference_pb2.CancelRequest())
    assert (await stream.read()).chunk.request_id
    assert not inference.closed.is_set()
    stream.cancel()
    await served.channel.close()
    await server.stop(0)


async def test_a_burst_waits_until_the_server_takes_it(served: Served) -> None:
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.insecure_channel(f"127.0.0.1:{served.port}", options=options) for _ in range(3)]
    asked = inference_pb2.CancelRequest().SerializeToString()
    methods: list[Any] = [each.unary_unary(f"/{INFERENCE}/Cancel") for each in channels]
    calls = [method.future(asked, timeout=60) for method in methods for _ in range(800)]
    has_ended = threading.Event()
    for call in calls:
        call.add_done_callback(lambda _: has_ended.set())
    # The loop stands still: gRPC itself must keep all of them.
    assert not has_ended.wait(1.0)
    codes = await asyncio.to_thread(lambda: {call.code() for call in calls})
    import collections

    print("ZZZ", collections.Counter(c.details() for c in calls))
    assert codes == {grpc.StatusCode.OK}
    for each in channels:
        each.close()
