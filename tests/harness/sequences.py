"""Sequences for tests of what plans and computes them."""

from __future__ import annotations

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.kv.envelope import TokenArray
from inferflux.worker.engine.plan.answer import Answer
from inferflux.worker.engine.plan.facets import Origin
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.plan.text import TextAssembler
from inferflux.worker.engine.sampling.sampling import Sampler


def new_sequence(
    seq_id: int, tokens: TokenArray, *, prompt_tokens: int, urgency_key: float = 0.0
) -> Sequence:
    """One of which nothing is computed, greedy and without a deadline."""
    return Sequence(
        key=f"t.r{seq_id}",
        epoch=1,
        slot=seq_id,
        order=(urgency_key, seq_id),
        tokens=tokens,
        prompt_tokens=prompt_tokens,
        max_tokens=10,
        end_tokens=frozenset(),
        sampler=Sampler(generation_pb2.SamplingParams(), []),
        answer=Answer(TextAssembler()),
        origin=Origin(f"r{seq_id}"),
        seq_id=seq_id,
    )
