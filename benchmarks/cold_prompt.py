"""The first token of a prompt that nothing knows: ours, llama-cpp-python's, and llama.cpp's server's.

    .venv/bin/python -m benchmarks.cold_prompt [--model FILE] [--tokens 1231] [--rounds 6] [--threads 2]

The three take turns with the same prompts of random tokens; none keeps what it computed. Ours is a whole
stack, asked over gRPC, llama.cpp's server is asked over HTTP, and llama-cpp-python computes the prompt in a
process of its own, with flash attention and without; the faster of its two medians counts. Prints medians of
the seconds until the first token, of the CPU seconds of all processes, and ours divided by each other's. The
model is SmolLM2 (`make models`) unless another is given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

from inferflux.cli.model_files.named import SMOLLM2, fetched
from inferflux.cli.stack import StackOptions

from .load.command_line import add_json, make_parser, positive, write_json
from .load.grpc_target import generate_request
from .load.stats import median
from .rows.cpu_cost import cpu_s
from .rows.peer_build import built_server
from .rows.peers import find, llama_server
from .scheduling.ground import Ground, ground

_SLOTS = 4
_CELLS = 8192
_IDS = range(300, 1800)
_OURS = "ours"

_Ask = Callable[[Sequence[int]], Awaitable[None]]
"""Has a prompt computed; returns once its first token is there."""


def _computes(model: str, threads: int, has_flash_attention: bool, connection: Connection) -> None:
    """llama-cpp-python in a process of its own: an answer of one token for each prompt that is received."""
    from llama_cpp import Llama

    llama = Llama(
        model,
        n_ctx=_CELLS,
        n_threads=threads,
        n_threads_batch=threads,
        flash_attn=has_flash_attention,
        verbose=False,
    )
    connection.send(None)
    with suppress(EOFError):
        while True:
            prompt = connection.recv()
            llama.reset()
            llama.eval(prompt)
            connection.send(llama.sample(temp=0.0))


class Contenders:
    """Holds what computes the prompts, by name: how each is asked, and which processes work for it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._open = AsyncExitStack()
        self.ask: dict[str, _Ask] = {}
        self._pids: dict[str, list[int]] = {}

    async def __aenter__(self) -> Self:
        made = StackOptions(
            model=self._options.model, slots=_SLOTS, threads=self._options.threads, kv_cells=_CELLS
        )
        on = await self._open.enter_async_context(ground(made))
        self.ask[_OURS] = lambda prompt: _ask_ours(on, prompt)
        self._pids[_OURS] = [process.pid for process in on.stack.processes.values()]
        await self._start_server()
        for has_flash in (True, False):
            await self._start_library(has_flash_attention=has_flash)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def _start_server(self) -> None:
        peer, before = find(built_server()), set(psutil.Process().children())
        url = await self._open.enter_async_context(
            llama_server(
                peer,
                self._options.model,
                threads=self._options.threads,
                slots=_SLOTS,
                cells=_CELLS,
                omp="default",
            )
        )
        self.ask[peer.name] = lambda prompt: _ask_server(url, prompt)
        self._pids[peer.name] = [child.pid for child in set(psutil.Process().children()) - before]

    async def _start_library(self, *, has_flash_attention: bool) -> None:
        here, there = multiprocessing.Pipe()
        arguments = (str(self._options.model), self._options.threads, has_flash_attention, there)
        process = multiprocessing.get_context("spawn").Process(target=_computes, args=arguments, daemon=True)
        process.start()
        self._open.callback(process.join)
        self._open.callback(process.terminate)
        await asyncio.to_thread(here.recv)

        async def ask(prompt: Sequence[int]) -> None:
            here.send(list(prompt))
            await asyncio.to_thread(here.recv)

        name = f"llama-cpp-python, {'flash' if has_flash_attention else 'no flash'}"
        self.ask[name] = ask
        self._pids[name] = [process.pid or 0]

    def cpu_s(self, name: str) -> float:
        """CPU seconds that its processes have spent."""
        return sum(cpu_s(pid) for pid in self._pids[name])


async def _ask_ours(on: Ground, prompt: Sequence[int]) -> None:
    asked = on.caller.send(generate_request(on.model, list(prompt), 1))
    await asked.task


async def _ask_server(url: str, prompt: Sequence[int]) -> None:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"prompt": list(prompt), "n_predict": 1, "temperature": 0}).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    try:
        status = await reader.readline()
        if b" 200 " not in status:
            raise OSError(f"llama.cpp's server answered {status.decode().strip()}")
        await reader.read()
    finally:
        writer.close()


async def measure(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """By contender: seconds of each prompt, wall and CPU, after one that is not counted."""
    chance = random.Random(options.seed)
    seen: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"wall_s": [], "cpu_s": []})
    async with Contenders(options) as contenders:
        for number in track(
            range(1 + options.rounds), console=Console(stderr=True), description="rounds", transient=True
        ):
            prompt = [chance.choice(_IDS) for _ in range(options.tokens)]
            for name, ask in contenders.ask.items():
                began_s, began_cpu_s = time.perf_counter(), contenders.cpu_s(name)
                await ask(prompt)
                if number:
                    seen[name]["wall_s"].append(time.perf_counter() - began_s)
                    seen[name]["cpu_s"].append(contenders.cpu_s(name) - began_cpu_s)
    return dict(seen)


def to_table(seen: dict[str, dict[str, list[float]]]) -> Table:
    table = Table("", "wall, s", "CPU, s", "ours ÷ it, wall", "ours ÷ it, CPU")
    medians = {name: {kind: median(of) for kind, of in times.items()} for name, times in seen.items()}
    own = medians[_OURS]
    for name, times in medians.items():
        ratios = ["" if name == _OURS else f"{own[kind] / times[kind]:.2f}" for kind in times]
        table.add_row(name, *(f"{value:.2f}" for value in times.values()), *ratios)
    return table


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, default=fetched(SMOLLM2))
    parser.add_argument("--tokens", type=positive, default=1231)
    parser.add_argument("--rounds", type=positive, default=6)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--seed", type=int, default=1)
    add_json(parser, "all times")
    options = parser.parse_args()
    if options.model is None:
        parser.error("SmolLM2 is not here: `make models`, or --model FILE")
    seen = asyncio.run(measure(options))
    Console().print(to_table(seen))
    write_json(options, seen)


if __name__ == "__main__":
    main()
