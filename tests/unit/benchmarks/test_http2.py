"""The lean gRPC client: its frames, and the client itself against grpcio's server."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import http2
from benchmarks.load.grpc_target import GrpcTarget
from benchmarks.load.lean_grpc_target import LeanGrpcTarget
from benchmarks.load.loops import Target
from benchmarks.load.trace import Trace
from inferflux.common.calls.grpc_options import SERVER_OPTIONS
from inferflux.v1 import inference_pb2, tokens_pb2

_PLACES = st.lists(st.integers(0, 10_000), max_size=12)


def _cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % len(data) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(_PLACES, st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_frames_and_messages_come_out_the_same_wherever_the_bytes_are_cut(
    places: list[int], messages: list[bytes]
) -> None:
    framed = b"".join(b"\0" + len(m).to_bytes(4) + m for m in messages)
    frames = [http2.Frame(http2.FrameType.DATA, 0, 5, part) for part in _cut(framed, places[:3])]
    data = b"".join(http2.frame(http2.FrameType(f.kind), f.flags, f.stream, f.payload) for f in frames)
    frame_reader, message_reader = http2.FrameReader(), http2.MessageReader()
    seen = [one for part in _cut(data, places) for one in frame_reader.feed(part)]
    assert seen == frames
    assert [m for one in seen for m in message_reader.feed(one.payload)] == messages


@given(st.dictionaries(st.from_regex(r"[a-z-]{1,200}", fullmatch=True), st.text(max_size=300), max_size=5))
def test_headers_are_read_as_they_were_written(headers: dict[str, str]) -> None:
    assert http2.decode_headers(http2.encode_headers(headers.items())) == headers


def test_headers_from_the_static_table_are_skipped() -> None:
    # Indexed (:status 200), literal with an indexed name, a new table size, literal with a name of its own.
    block = b"\x88" + b"\x5f\x03abc" + b"\x20" + http2.encode_headers([("grpc-status", "0")])
    assert http2.decode_headers(block) == {"grpc-status": "0"}


@pytest.mark.parametrize("length", [1, 5, 9])
def test_headers_that_are_cut_off_are_refused(length: int) -> None:
    with pytest.raises(http2.Http2Error, match="cut off"):
        http2.decode_headers(http2.encode_headers([("grpc-status", "0")])[:length])


_SETTINGS, _WINDOW_UPDATE = http2.FrameType.SETTINGS, http2.FrameType.WINDOW_UPDATE


def _data_of(sent: bytes, stream: int) -> list[http2.Frame]:
    frames = list(http2.FrameReader().feed(sent))
    return [one for one in frames if one.kind == http2.FrameType.DATA and one.stream == stream]


def _initial_window(size: int) -> http2.Frame:
    return http2.Frame(_SETTINGS, 0, 0, (4).to_bytes(2) + size.to_bytes(4))


def _update(stream: int, by: int) -> http2.Frame:
    return http2.Frame(_WINDOW_UPDATE, 0, stream, by.to_bytes(4))


def test_a_request_goes_as_far_as_the_window_of_its_stream() -> None:
    requests = http2.Requests()
    assert requests.take(_initial_window(8_192)) == b""
    sent = [requests.begin(1, [], b"x" * 12_000), requests.take(_update(1, 1_000))]
    assert [len(one.payload) for part in sent for one in _data_of(part, 1)] == [8_192, 1_000]
    assert requests.take(_update(0, 1_000_000)) == b""
    (last,) = _data_of(requests.take(_update(1, 1_000_000)), 1)
    assert (len(last.payload), last.flags) == (12_005 - 9_192, http2.END_STREAM)
    assert requests.take(_update(1, 1_000_000)) == b""


def test_requests_share_the_window_of_their_connection() -> None:
    requests = http2.Requests()
    first, second = requests.begin(1, [], b"x" * 60_000), requests.begin(3, [], b"y" * 20_000)
    assert [len(one.payload) for one in _data_of(first, 1)] == [16_384, 16_384, 16_384, 60_005 - 3 * 16_384]
    assert sum(len(one.payload) for one in _data_of(second, 3)) == 65_535 - 60_005
    requests.end(3)
    assert requests.take(_update(0, 100_000)) == b""


def test_a_window_made_smaller_is_paid_back_before_more_goes() -> None:
    requests = http2.Requests()
    requests.begin(1, [], b"x" * 70_000)
    assert requests.take(_initial_window(8_192)) == b""
    assert requests.take(_update(0, 1_000_000)) == b""
    assert requests.take(_update(1, 65_535 - 8_192)) == b""
    assert len(_data_of(requests.take(_update(1, 10)), 1)[0].payload) == 10


def _server() -> grpc.aio.Server:
    """Streams as many tokens as asked for, unless the prompt begins with 0: then it fails after one.

    It has the options of the gateway's: the windows of its streams are small.
    """

    async def generate(
        request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        for offset in range(request.params.max_tokens):
            chunk = tokens_pb2.TokenChunk(offset=offset, text="é" * 200, token_ids=[7])
            chunk.sampled_unix_us = time.time_ns() // 1000
            yield inference_pb2.GenerateResponse(chunk=chunk).SerializeToString()
            if request.token_ids.ids[0] == 0:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "all slots are taken: wait")
            if dict(context.invocation_metadata() or ()).get("authorization") != "Bearer key":
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no key")

    handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
        generate, request_deserializer=inference_pb2.GenerateRequest.FromString
    )
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("inferflux.v1.InferenceService", {"Generate": handler}),)
    )
    return server


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = _server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.mark.parametrize("kind", [GrpcTarget, LeanGrpcTarget])
async def test_both_clients_see_the_same_stream(kind: type[Any], address: str) -> None:
    target: Target = kind(address, model="m", api_key="key")
    for prompt in ([5, 6], [1] * 12_000, [1] * 200_000):  # more than the window of a stream, of a connection
        trace = Trace(time.perf_counter())
        await target.generate(prompt, 200, trace)
        assert trace.error == ""
        assert trace.tokens == 200
        assert trace.arrivals_s == sorted(trace.arrivals_s)
        assert all(-0.01 < lag < 5 for lag in trace.sampled_to_received_s)
    failed = Trace(time.perf_counter())
    await target.generate([0], 5, failed)
    assert failed.tokens == 1
    assert "all slots are taken: wait" in failed.error
    await target.close()


async def test_a_server_that_is_not_there_fails_the_request() -> None:
    target = LeanGrpcTarget("127.0.0.1:9", model="m", api_key="")
    trace = Trace(time.perf_counter())
    await target.generate([1], 1, trace)
    assert "ConnectionRefusedError" in trace.error
