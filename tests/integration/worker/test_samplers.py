"""Samplers that few requests ask for, in an engine of the demo model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from harness.worker import batch_item

from inferflux.v1 import engine_pb2, generation_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.tiers.tiers import Tiers

DEMO_MODEL = Path(__file__).parents[3] / "models" / "inferflux-demo.gguf"
# All requests together fill 256 cells at most: llama.cpp's arithmetic is then the same for each alone.
MAX_TOKENS = 50
PROMPT = list(range(300, 308))
ALL: dict[str, Any] = {
    "temperature": 0.9,
    "typical_p": 0.95,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.1,
    "dry_multiplier": 0.8,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "dynatemp_range": 0.3,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": 2.0,
}


@pytest.fixture(scope="module")
def backend() -> Backend:
    return Backend(
        engine_pb2.EngineConfig(
            model_path=str(DEMO_MODEL),
            slots=8,
            sequences=16,
            batch_tokens=512,
            kv_cells=8192,
            threads=1,
            flash_attention=True,
            # Its arithmetic is another, and a busy machine spreads prompts over several steps.
            prefill_cells=0,
        )
    )


def item_of(
    name: str, generated: list[int] | None = None, *, max_tokens: int = MAX_TOKENS, **sampling: Any
) -> worker_pb2.BatchItem:
    item = batch_item(name, prompt=PROMPT, max_tokens=max_tokens, **sampling)
    item.request.params.ignore_eos = True
    texts = generation_pb2.SequenceBreakers(texts=["\n", "."])
    item.request.params.sampling.dry_sequence_breakers.CopyFrom(texts)
    if generated:
        item.request.generated_token_ids.extend(generated)
        item.request.epoch = 2
    return item


def run(backend: Backend, *items: worker_pb2.BatchItem) -> dict[str, list[int]]:
    """The new tokens of each request, served at once."""
    backend._main.clear()
    engine = Engine(
        backend,
        worker_id="w",
        max_itl_factor=5.0,
        step_limit_s=0.2,
        tiers=Tiers.off(),
        has_prefix_cache=False,
    )
    for item in items:
        # A request waits for its breakers: what it is computed beside would be a matter of luck.
        if (breakers := engine._breakers.finder.of(item.request.params.sampling)) is not None:
            breakers.result()
    for slot, item in enumerate(items):
        item.slot = slot
        engine.start(item)
    tokens: dict[str, list[int]] = {item.request.request_id: [] for item in items}
    while engine.residents:
        engine.step()
        report = engine.take_report()
        if report is None:
            time.sleep(0.001)  # breakers are being found
            continue
        for emission in report.step.emissions:
            chunk = tokens_pb2.TokenChunk.FromString(emission.chunk)
            assert not chunk.HasField("failed")
            tokens[chunk.request_id].extend(chunk.token_ids)
    engine.close()
    return tokens


def test_an_answer_is_the_same_alone_beside_others_and_after_a_retry(backend: Backend) -> None:
    items = [item_of(f"r{seed}", seed=seed, **ALL) for seed in range(3)]
    together = run(backend, *items, item_of("plain", temperature=0.8, seed=1))
    for item in items:
        name = item.request.request_id
        assert len(together[name]) == MAX_TOKENS
        seed = item.request.params.sampling.seed
        assert run(backend, item_of(name, seed=seed, **ALL))[name] == together[name]
        retried = run(backend, item_of(name, together[name][:20], seed=seed, **ALL))
        assert together[name][:20] + retried[name] == together[name]


def test_dry_ends_a_repetition(backend: Backend) -> None:
    greedy = run(backend, item_of("plain", max_tokens=100, temperature=0.0))["plain"]
    dry = {name: value for name, value in ALL.items() if name.startswith("dry")}
    other = run(backend, item_of("dry", max_tokens=100, temperature=0.0, **dry | {"dry_multiplier": 5.0}))[
        "dry"
    ]
    assert longest_repetition(greedy) > 32
    assert longest_repetition(other) < longest_repetition(greedy) // 4


def longest_repetition(tokens: list[int]) -> int:
    """Tokens of the longest piece that comes twice."""
    longest = 0
    for i in range(len(tokens)):
        for j in range(i + 1, len(tokens)):
            n = 0
            while j + n < len(tokens) and tokens[i + n] == tokens[j + n]:
                n += 1
            longest = max(longest, n)
    return longest
