"""Embeddings through gRPC, against a bare loop over llama.cpp on the same file, in turns.

    .venv/bin/python -m benchmarks.embeddings [--seconds 5] [--rounds 4] [--concurrent 32] [--texts 1]

The model is all-MiniLM-L6-v2, each text has `--tokens` tokens. The bare loop embeds batches of one size after
the other, as fast as it can. Its fastest size counts, and the faster of two ways in which its threads wait:
as an embedder's do, and as OpenMP has it. Prints the median ratio of the rounds, and the CPU time that each
process spends on a text.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from inferflux.cli.stack import Stack, StackOptions
from inferflux.client import AsyncClient
from inferflux.worker.processes.engine_process import EMBEDDER_SPIN_COUNT
from tools.minilm import write_minilm

from .command_line import add_json, make_parser, positive, show_figures
from .cpu_cost import cpu_s, per_request_ms
from .stats import median

_BATCHES = (4, 8, 16, 32)
_MODEL = "minilm"
_WARM_UP_S = 2.0


def _bare(path: str, threads: int, tokens: int, asked: Connection) -> None:
    """Asked with the texts of a batch and seconds, it says how many texts a second that makes."""
    from inferflux.v1 import engine_pb2, model_pb2
    from inferflux.worker.embedder.backend import Backend

    config = engine_pb2.EngineConfig(
        model_path=path,
        threads=threads,
        flash_attention=True,
        role=model_pb2.MODEL_ROLE_EMBEDDING,
        slots=1,
    )
    backend = Backend(config)
    text = np.array(_ids(tokens), np.int32)
    while (ask := asked.recv()) is not None:
        batch, seconds = ask
        began, done = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < seconds:
            backend.embed([text] * batch)
            done += batch
        asked.send(done / took)


class _BareLoop:
    """A process that embeds and does nothing else.

    Args:
        spin: how its threads wait, as `GOMP_SPINCOUNT` has it; "": OpenMP's default.
    """

    def __init__(self, path: Path, threads: int, tokens: int, spin: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._asked, theirs = spawn.Pipe()
        self._process: BaseProcess = spawn.Process(
            target=_bare, args=(str(path), threads, tokens, theirs), daemon=True
        )
        before = os.environ.pop("GOMP_SPINCOUNT", None)
        if spin:
            os.environ["GOMP_SPINCOUNT"] = spin
        self._process.start()
        os.environ.pop("GOMP_SPINCOUNT", None)
        if before is not None:
            os.environ["GOMP_SPINCOUNT"] = before

    async def rate(self, batch: int, seconds: float) -> float:
        """Texts a second."""
        self._asked.send((batch, seconds))
        return float(await asyncio.to_thread(self._asked.recv))

    def close(self) -> None:
        self._asked.send(None)
        self._process.join()


def _ids(tokens: int) -> list[int]:
    return [101, *range(2000, 2000 + tokens - 2), 102]


class _Load:
    """Callers that embed, one call after the other."""

    def __init__(self, client: AsyncClient, texts: int, tokens: int) -> None:
        self.done = 0
        self._client = client
        self._ids = [_ids(tokens)] * texts

    async def rate(self, concurrent: int, seconds: float) -> float:
        """Texts a second."""
        callers = [asyncio.create_task(self._call()) for _ in range(concurrent)]
        await asyncio.sleep(_WARM_UP_S)
        before, began = self.done, time.perf_counter()
        await asyncio.sleep(seconds)
        rate = (self.done - before) / (time.perf_counter() - began)
        for each in callers:
            each.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        return rate

    async def _call(self) -> None:
        while True:
            await self._client.embed(self._ids, model=_MODEL)
            self.done += len(self._ids)


def _spent_s(pids: Mapping[str, int]) -> dict[str, float]:
    """Seconds of CPU of each process with its children, and of this one alone."""
    return {name: cpu_s(pid) for name, pid in pids.items()} | {"client": time.process_time()}


async def _measure(path: Path, options: argparse.Namespace) -> dict[str, float]:
    loops = {
        spin: _BareLoop(path, options.threads, options.tokens, spin) for spin in (EMBEDDER_SPIN_COUNT, "")
    }
    rates = {
        (spin, batch): await loop.rate(batch, options.seconds / 2)
        for batch in _BATCHES
        for spin, loop in loops.items()
    }
    best = {spin: max((rates[spin, batch], batch) for batch in _BATCHES)[1] for spin in loops}
    worker = {"GOMP_SPINCOUNT": options.spin}
    async with (
        Stack(StackOptions(model=path, threads=options.threads, service_env={"worker": worker})) as stack,
        AsyncClient(stack.endpoint, api_key=stack.api_key) as client,
    ):
        pids = {name: each.pid for name, each in stack.processes.items()}
        load = _Load(client, options.texts, options.tokens)
        spent = dict.fromkeys((*pids, "client"), 0.0)
        ratios, through, alone = [], [], []
        for _ in track(range(options.rounds), console=Console(stderr=True), description="rounds"):
            before, done = _spent_s(pids), load.done
            through.append(await load.rate(options.concurrent, options.seconds))
            each = per_request_ms(before, _spent_s(pids), load.done - done)
            spent = {name: spent[name] + each[name] / options.rounds for name in spent}
            alone.append(max([await loop.rate(best[spin], options.seconds) for spin, loop in loops.items()]))
            ratios.append(through[-1] / alone[-1])
    for loop in loops.values():
        loop.close()
    figures = {
        f"bare loop by {batch}, {'threads that sleep' if spin else 'OpenMP threads'}, texts/s": rate
        for (spin, batch), rate in rates.items()
    }
    figures |= {"bare loop, texts/s": median(alone), "gRPC, texts/s": median(through)}
    figures |= {"ratio": median(ratios), "lowest ratio": min(ratios), "highest ratio": max(ratios)}
    return figures | {f"{name}, CPU ms a text": value for name, value in spent.items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--rounds", type=positive, default=4)
    parser.add_argument("--concurrent", type=positive, default=32)
    parser.add_argument("--texts", type=positive, default=1, help="of a call")
    parser.add_argument("--tokens", type=positive, default=64, help="of a text")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--spin", default=EMBEDDER_SPIN_COUNT, help="GOMP_SPINCOUNT of the embedder")
    add_json(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = write_minilm(Path(scratch) / f"{_MODEL}.gguf")
        if path is None:
            parser.exit(1, "all-MiniLM-L6-v2 is not installed: say make .venv/.dev\n")
        figures = asyncio.run(_measure(path, options))
    show_figures(options, figures)


if __name__ == "__main__":
    main()
