"""Embeddings through gRPC, against a bare loop over llama.cpp on the same file in the same run.

    .venv/bin/python -m benchmarks.embeddings [--seconds 10] [--concurrent 32] [--texts 1] [--threads 2]

The model is all-MiniLM-L6-v2, each text has 64 tokens. The bare loop embeds batches of one size after the
other, as fast as it can; the fastest size counts.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np

from inferflux.cli.stack import Stack, StackOptions
from inferflux.client import AsyncClient
from tools.minilm import write_minilm

_TOKENS = 64
_BATCHES = (4, 8, 16, 32)


def _bare(path: str, threads: int, seconds: float, answers: multiprocessing.Queue[dict[int, float]]) -> None:
    """Texts a second, by the texts of a batch."""
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
    text = np.array(_ids(), np.int32)
    rates = {}
    for n in _BATCHES:
        began, done = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < seconds / len(_BATCHES):
            backend.embed([text] * n)
            done += n
        rates[n] = done / took
    answers.put(rates)


def _ids() -> list[int]:
    return [101, *range(2000, 2000 + _TOKENS - 2), 102]


async def _through(path: Path, options: argparse.Namespace) -> float:
    """Texts a second through gRPC."""
    done = 0
    async with (
        Stack(StackOptions(model=path, threads=options.threads)) as stack,
        AsyncClient(stack.endpoint, api_key=stack.api_key) as client,
    ):

        async def caller() -> None:
            nonlocal done
            while True:
                await client.embed([_ids()] * options.texts, model="minilm")
                done += options.texts

        callers = [asyncio.create_task(caller()) for _ in range(options.concurrent)]
        await asyncio.sleep(2.0)
        before, began = done, time.perf_counter()
        await asyncio.sleep(options.seconds)
        rate = (done - before) / (time.perf_counter() - began)
        for each in callers:
            each.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--concurrent", type=int, default=32)
    parser.add_argument("--texts", type=int, default=1, help="of a call")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = write_minilm(Path(scratch) / "minilm.gguf")
        if path is None:
            parser.exit(1, "all-MiniLM-L6-v2 is not installed: say make .venv/.dev\n")
        spawn = multiprocessing.get_context("spawn")
        answers = spawn.Queue()
        bare = spawn.Process(target=_bare, args=(str(path), options.threads, options.seconds, answers))
        bare.start()
        rates = answers.get()
        bare.join()
        through = asyncio.run(_through(path, options))
    best = max(rates.values())
    print("bare loop, texts/s by batch:", {n: round(rate, 1) for n, rate in rates.items()})
    print(
        f"gRPC, {options.concurrent} calls of {options.texts} texts: {through:.1f} texts/s, "
        f"{through / best:.2f} of the bare loop"
    )


if __name__ == "__main__":
    main()
