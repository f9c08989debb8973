"""The first token of a model that is not loaded, against llama.cpp's server that starts on the same file.

    .venv/bin/python -m benchmarks.cold_model [--model models/bench.gguf] [--rounds 8] [--threads 2]

Ours: a stack serves the demo model; a request for the other model has it loaded. Theirs: the server's process
is started, asked whether it answers every 2 ms, and then asked the same. Both count until the first token.
The two take turns, and the file is in the page cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from inferflux.cli.stack import StackOptions
from inferflux.v1 import model_pb2

from .command_line import add_json, make_parser, positive, show_figures
from .grpc_target import generate_request
from .lab import BENCH_MODEL, DEMO_MODEL
from .model_swaps import until_state
from .peer_build import built_server
from .peers import Peer, find, llama_server
from .scheduling.ground import Ground, ground
from .stats import median

_PROMPT_TOKENS = 32
_IDS = range(300, 1800)
_SLOTS = 4
# The worker has started its next engine process by then.
_PAUSE_S = 3.0
_CELLS = 16_384


async def ours(on: Ground, name: str, prompt: Sequence[int]) -> float:
    """Seconds from the request to the first token; the model is unloaded again."""
    asked = on.caller.send(generate_request(name, list(prompt), 4))
    await asked.task
    await on.admin.unload_model(model_pb2.UnloadModelRequest(name=name))
    await until_state(on, name, model_pb2.MODEL_STATE_REGISTERED)
    return asked.stream.ttft_s


async def theirs(peer: Peer, model: Path, threads: int, prompt: Sequence[int]) -> float:
    """Seconds from the start of the process to the first token."""
    began_s = time.perf_counter()
    async with llama_server(
        peer, model, threads=threads, slots=_SLOTS, cells=_CELLS, omp="default", look_every_s=0.002
    ) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({"prompt": list(prompt), "n_predict": 4, "stream": True}).encode()
        head = f"POST /completion HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        try:
            await reader.readuntil(b"data: ")
            return time.perf_counter() - began_s
        finally:
            writer.close()


async def measure(options: argparse.Namespace) -> dict[str, float]:
    peer = find(built_server())
    chance = random.Random(options.seed)
    made = StackOptions(model=DEMO_MODEL, slots=_SLOTS, threads=options.threads)
    seen: list[tuple[float, float]] = []
    async with ground(made) as on:
        name = options.model.name.removesuffix(".gguf")
        await on.admin.load_model(model_pb2.LoadModelRequest(path=str(options.model.absolute())))
        await until_state(on, name, model_pb2.MODEL_STATE_READY)
        await on.admin.unload_model(model_pb2.UnloadModelRequest(name=name))
        await until_state(on, name, model_pb2.MODEL_STATE_REGISTERED)
        for _ in track(range(options.rounds), console=Console(stderr=True), description="rounds"):
            await asyncio.sleep(_PAUSE_S)
            prompt = [chance.choice(_IDS) for _ in range(_PROMPT_TOKENS)]
            loaded_s = await ours(on, name, prompt)
            seen.append((loaded_s, await theirs(peer, options.model, options.threads, prompt)))
    print(f"against {peer.name}")
    return {
        "ours_s": median([own for own, _ in seen]),
        "theirs_s": median([other for _, other in seen]),
        "ratio": median([own / other for own, other in seen]),
        "lowest_ratio": min(own / other for own, other in seen),
        "highest_ratio": max(own / other for own, other in seen),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, default=BENCH_MODEL)
    parser.add_argument("--rounds", type=positive, default=8)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--seed", type=int, default=1)
    add_json(parser)
    options = parser.parse_args()
    figures = asyncio.run(measure(options))
    show_figures(options, figures)


if __name__ == "__main__":
    main()
