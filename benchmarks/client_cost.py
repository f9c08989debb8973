"""The load generator's own cost: CPU time per token, for each kind of target.

    python -m benchmarks.client_cost

It shares its cores with the server under test, so its own time is part of what is measured. Here it reads
from stand-ins that send made-up tokens at a steady pace from another process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import uvloop
from rich.console import Console

from benchmarks.load.command_line import add_json, make_parser, write_json
from benchmarks.load.grpc_target import GrpcTarget
from benchmarks.load.lean_grpc_target import LeanGrpcTarget
from benchmarks.load.loops import Target, closed_loop, sender
from benchmarks.load.prompts import Prompts
from benchmarks.load.sse_target import SseTarget
from benchmarks.load.trace import totals
from inferflux.cli.stack.servers import LOOPBACK
from inferflux.v1 import inference_pb2, tokens_pb2

_ROOT = Path(__file__).resolve().parents[1]
_TOKENS = 64
_STREAMS = 8
_MODEL = "stand-in"


def _made_up(pace_s: float) -> grpc.GenericRpcHandler:
    """A gateway that makes its tokens up."""

    async def generate(request: inference_pb2.GenerateRequest, _: object) -> AsyncIterator[bytes]:
        for offset in range(request.params.max_tokens):
            await asyncio.sleep(pace_s)
            chunk = tokens_pb2.TokenChunk(request_id="r" * 24, epoch=1, offset=offset, text=" word")
            chunk.token_ids.append(1000 + offset)
            chunk.sampled_unix_us = time.time_ns() // 1000
            yield inference_pb2.GenerateResponse(chunk=chunk).SerializeToString()

    handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
        generate, request_deserializer=inference_pb2.GenerateRequest.FromString
    )
    return grpc.method_handlers_generic_handler("inferflux.v1.InferenceService", {"Generate": handler})


def _event(text: str, reason: str | None) -> bytes:
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": reason}
    body = {
        "choices": [choice],
        "created": 1700000000,
        "model": "models/bench.gguf",
        "system_fingerprint": "b0-unknown",
        "object": "text_completion",
        "id": "chatcmpl-" + "x" * 32,
    }
    if reason:
        body["usage"] = {"completion_tokens": _TOKENS, "prompt_tokens": 1, "total_tokens": _TOKENS + 1}
    return _chunk(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace_s: float) -> None:
    """Stream completions over one connection, in the shape of llama.cpp's own server."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(_TOKENS):
                await asyncio.sleep(pace_s)
                writer.write(_event(" word", None))
            writer.write(_event("", "length") + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    except asyncio.IncompleteReadError:
        writer.close()


async def stand_in(pace_s: float) -> None:
    """Serve both protocols, print the two ports, and stay until the end of stdin."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_made_up(pace_s),))
    grpc_port = server.add_insecure_port(f"{LOOPBACK}:0")
    await server.start()
    http = await asyncio.start_server(lambda r, w: _answer(r, w, pace_s), LOOPBACK, 0)
    print(grpc_port, http.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    http.close()
    await server.stop(None)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """CPU time of this process per token, in microseconds, for each target."""
    words = ("-m", "benchmarks.client_cost", "--stand-in", "--pace-ms", str(options.pace_ms))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=_ROOT,
    )
    assert process.stdout is not None and process.stdin is not None  # noqa: PT018, S101 - both are pipes
    grpc_port, http_port = (await process.stdout.readline()).split()
    result: dict[str, Any] = {"pace_ms": options.pace_ms, "streams": _STREAMS}
    targets: dict[str, Target] = {
        "grpc": GrpcTarget(f"{LOOPBACK}:{int(grpc_port)}", model=_MODEL, api_key=""),
        "lean_grpc": LeanGrpcTarget(f"{LOOPBACK}:{int(grpc_port)}", model=_MODEL, api_key=""),
        "sse": SseTarget(f"http://{LOOPBACK}:{int(http_port)}", model=_MODEL, api_key=""),
    }
    try:
        for name, server in targets.items():
            result[f"{name}_us_per_token"] = round(await _cost_us(server, options.requests), 2)
            await server.close()
    finally:
        process.stdin.close()
        await process.wait()
    return result


async def _cost_us(server: Target, requests: int) -> float:
    send = sender(server, Prompts(1, (0, 1000)), max_tokens=_TOKENS, limit_s=60)
    await closed_loop(send, requests=range(_STREAMS), concurrency=_STREAMS, on_done=lambda: None)
    began_s = time.process_time()
    traces = await closed_loop(send, requests=range(requests), concurrency=_STREAMS, on_done=lambda: None)
    spent_s = time.process_time() - began_s
    figures = totals(traces)
    if figures["failed"]:
        raise OSError(f"the stand-in failed: {figures['errors']}")
    return spent_s / int(figures["tokens"]) * 1e6


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--pace-ms", type=float, default=5.0, help="between two tokens of a stream")
    parser.add_argument("--stand-in", action="store_true", help="be the server (used by the script itself)")
    add_json(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse(arguments)
    if options.stand_in:
        uvloop.run(stand_in(options.pace_ms / 1000))
        return 0
    result = uvloop.run(measure(options))
    Console().print_json(json.dumps(result))
    write_json(options, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
