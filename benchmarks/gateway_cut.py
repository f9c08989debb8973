"""How streams fare whose gateway is cut off from all other processes for a while.

    python benchmarks/gateway_cut.py --seconds 20 --streams 10

The gateway is stopped (SIGSTOP) while the streams run: its clients, NATS and policy get nothing from it. Each
client asked for a resume window. After two seconds of silence it resumes, once at another gateway, once at
the same one, which answers when it goes on. The answers are compared with undisturbed ones.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import grpc.aio

from benchmarks.scheduling.ground import until
from benchmarks.scheduling.streams import Stream, countdown
from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.calls import grpc_client
from inferflux.common.servers.servers import free_port
from inferflux.v1 import inference_pb2, inference_pb2_grpc, model_pb2, model_pb2_grpc

_SILENCE_S = 2.0
_CUT_AT_TOKEN = 8
_RETRY_S = 0.3
_PATIENCE_S = 120.0


class Gateway:
    """One gateway as its clients see it."""

    def __init__(self, endpoint: str, api_key: str) -> None:
        self.channel = grpc_client.channel(endpoint)
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self._api_key = api_key

    def metadata(self, request_id: str = "") -> tuple[tuple[str, str], ...]:
        return grpc_client.outgoing(api_key=self._api_key, request_id=request_id)

    async def until_serving(self) -> None:
        models = model_pb2_grpc.ModelServiceStub(self.channel)
        await models.ListModels(
            model_pb2.ListModelsRequest(), metadata=self.metadata(), wait_for_ready=True, timeout=30
        )


async def read_on(first: Gateway, then: Gateway, request: inference_pb2.ChatRequest, stream: Stream) -> None:
    """Read an answer at `first`; what breaks off or falls silent is resumed at `then`."""
    request_id = f"cut-{secrets.token_hex(6)}"
    call: Any = first.inference.Chat(request, metadata=first.metadata(request_id))
    while not stream.finish_reason:
        try:
            response = await asyncio.wait_for(call.read(), _SILENCE_S)
            if response is grpc.aio.EOF:
                break
            stream.take(response.chunk, time.perf_counter())
        except (grpc.aio.AioRpcError, TimeoutError):
            call.cancel()
            await asyncio.sleep(_RETRY_S)
            resume = inference_pb2.ResumeRequest(request_id=request_id, offset=stream.tokens)
            call = then.inference.Resume(resume, metadata=then.metadata())
    stream.ended_s = time.perf_counter()


@asynccontextmanager
async def another_gateway(stack: Stack) -> AsyncIterator[Gateway]:
    """A second gateway process of the stack."""
    port = free_port()
    own = {
        "INFERFLUX_GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "INFERFLUX_GATEWAY_HTTP_LISTEN": "",
        "INFERFLUX_METRICS_LISTEN": f"127.0.0.1:{free_port()}",
    }
    env = {**os.environ, **stack.processes["gateway"].spec.env, **own}
    command = [sys.executable, "-m", "inferflux.gateway"]
    process = await asyncio.create_subprocess_exec(*command, env=env, stderr=asyncio.subprocess.DEVNULL)
    gateway = Gateway(f"127.0.0.1:{port}", stack.api_key)
    try:
        await gateway.until_serving()
        yield gateway
    finally:
        await gateway.channel.close()
        process.kill()
        await process.wait()


async def cut(
    stack: Stack, first: Gateway, then: Gateway, requests: Sequence[inference_pb2.ChatRequest], seconds: float
) -> tuple[list[Stream], int]:
    """Have the first gateway stand still for `seconds`, once every stream has some tokens.

    Returns the answers, and how many were under way then.
    """
    streams = [Stream(sent_s=time.perf_counter()) for _ in requests]
    reading = [
        asyncio.create_task(read_on(first, then, request, stream))
        for request, stream in zip(requests, streams, strict=True)
    ]
    await until(lambda: all(stream.tokens >= _CUT_AT_TOKEN for stream in streams))
    underway = sum(not stream.finish_reason for stream in streams)
    pid = stack.processes["gateway"].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
    _, late = await asyncio.wait(reading, timeout=_PATIENCE_S)
    for task in late:
        task.cancel()
    return streams, underway


async def measure(n_streams: int, seconds: float) -> bool:
    """Print a line per way to resume; whether every stream was whole."""
    async with Stack(StackOptions(slots=n_streams)) as stack, another_gateway(stack) as other:
        first = Gateway(stack.endpoint, stack.api_key)
        await first.until_serving()
        requests = [countdown(stack.model_name, 30 - i % 5, 1 + i // 5) for i in range(n_streams)]
        for request in requests:
            request.resume_window_s = int(seconds) + 60
        expected = [Stream(sent_s=time.perf_counter()) for _ in requests]
        for request, stream in zip(requests, expected, strict=True):
            await read_on(first, first, request, stream)
        is_whole = True
        for name, then in (("another gateway", other), ("the same gateway", first)):
            streams, underway = await cut(stack, first, then, requests, seconds)
            same = sum(
                s.finish_reason > 0 and not s.lost and (s.token_ids, s.text) == (e.token_ids, e.text)
                for s, e in zip(streams, expected, strict=True)
            )
            print(
                f"cut off for {seconds:g} s, resumed at {name}: {same} of {n_streams} whole and the same, "
                f"{underway} of them under way at the cut, {sum(s.doubled for s in streams)} tokens twice"
            )
            is_whole &= same == n_streams
        await first.channel.close()
    return is_whole


def main() -> None:
    parser = argparse.ArgumentParser(description="Cut a gateway off under running streams.")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=10, help="how many (default: %(default)s)")
    args = parser.parse_args()
    sys.exit(0 if asyncio.run(measure(args.streams, args.seconds)) else 1)


if __name__ == "__main__":
    main()
