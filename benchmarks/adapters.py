"""Tokens per second of one load over two adapters, divided by those of the same load over one.

    python -m benchmarks.adapters --model models/bench.gguf

An engine without processes around it serves eight greedy requests: all of one adapter, or half of another.
The two kinds alternate, and each is served as often. The adapters are of random weights and rank 16.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from inferflux.worker.processes.engine_process import SPIN_COUNT

# OpenMP reads the environment when llama.cpp's libraries are loaded.
os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT

from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.tiers.tiers import Tiers
from inferflux.worker.files.adapter_digest import digest_of
from tools.random_adapter import write_adapter

REQUESTS = 8
PROMPT = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    config = engine_pb2.EngineConfig(
        model_path=str(given.model),
        slots=REQUESTS,
        sequences=2 * REQUESTS,
        kv_cells=8192,
        batch_tokens=512,
        flash_attention=True,
    )
    backend = Backend(config)
    engine = Engine(
        backend,
        worker_id="w",
        max_itl_factor=2.0,
        step_limit_s=0.2,
        tiers=Tiers.off(),
        has_prefix_cache=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        digests = [_load(engine, given.model, Path(folder) / f"{seed}.gguf", seed) for seed in (1, 2)]
        one, two = digests[:1], digests
        _serve(engine, two, given.tokens)
        rates: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(given.rounds):
            for kinds in (one, two):
                rates[len(kinds)].append(_serve(engine, kinds, given.tokens))
    ratios = [mixed / alone for alone, mixed in zip(rates[1], rates[2], strict=True)]
    print(f"one adapter   {statistics.median(rates[1]):8.1f} tokens/s")
    print(f"two adapters  {statistics.median(rates[2]):8.1f} tokens/s")
    print(f"ratio         {statistics.median(ratios):8.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    engine.close()


def _load(engine: Engine, model: Path, path: Path, seed: int) -> str:
    write_adapter(path, model, seed=seed, rank=16)
    adapter = engine_pb2.EngineAdapter(digest=digest_of(path, 1.0), path=str(path), scale=1.0)
    loaded = engine.load_adapter_now(adapter)
    if loaded.error:
        raise SystemExit(loaded.error)
    return adapter.digest


def _serve(engine: Engine, digests: list[str], tokens: int) -> float:
    """Serve the requests to their ends; returns tokens per second."""
    began = time.perf_counter()
    for slot in range(REQUESTS):
        engine.start(_item(slot, digests[slot % len(digests)], tokens))
    while engine.idle_s() == 0.0:
        engine.step()
        engine.take_report()
    return REQUESTS * tokens / (time.perf_counter() - began)


def _item(slot: int, digest: str, tokens: int) -> worker_pb2.BatchItem:
    params = generation_pb2.GenerationParams(max_tokens=tokens, ignore_eos=True)
    params.sampling.temperature = 0.0
    request = scheduler_pb2.InferenceRequest(
        request_id=f"r{slot}",
        tenant="t",
        model="m",
        epoch=1,
        prompt_token_ids=[300 + (slot * 7 + i) % 700 for i in range(PROMPT)],
        params=params,
        adapter="a",
        adapter_digest=digest,
    )
    return worker_pb2.BatchItem(request=request, slot=slot)


if __name__ == "__main__":
    main()
