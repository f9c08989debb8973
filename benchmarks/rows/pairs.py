"""Runs of ours and of what they are held against, in turn, and the figures that come out of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.load.stats import median
from inferflux.cli.stack import Stack

from .calm import Run, calm_rounds
from .lab import Lab
from .table import ROWS, Reading

Readings = AsyncIterator[Reading]
Word = str | int | float
Result = dict[str, Any]

WAIT_POLICIES = ("passive", "active", "default")
SAMPLED: tuple[Word, ...] = ("--temperature", 0.8, "--top-k", 40, "--top-p", 0.95)


def reading(key: str, value: float, raw: dict[str, Any]) -> Reading:
    """A row's figure; its commands are those of the runs in `raw`."""
    lists = (entries for entries in raw.values() if isinstance(entries, list))
    runs = (entry for entries in lists for entry in entries if isinstance(entry, dict))
    return Reading(ROWS[key], value, raw, tuple(dict.fromkeys(run["command"] for run in runs)))


def ratio(ours: Sequence[Result], others: Sequence[Result]) -> float:
    """The median over the pairs of our tokens/s by the other's."""
    return median(ratios(ours, others, lambda run: float(run["tokens_per_s"])))


def ratios(
    ours: Sequence[Result], others: Sequence[Result], figure: Callable[[Result], float]
) -> list[float]:
    """Our figure by the other's, of each pair; nothing of a pair in which the other's is 0."""
    pairs = zip(map(figure, ours), map(figure, others), strict=True)
    return [mine / other for mine, other in pairs if other]


async def in_turn(lab: Lab, *runs: Run) -> list[list[dict[str, Any]]]:
    """Make these runs one after the other, as often as pairs are planned; returns the results of each.

    What changes on the machine meanwhile meets all.
    """
    rounds = await calm_rounds(lab.plan.pairs, runs, lab.say)
    return [list(results) for results in zip(*rounds, strict=True)]


async def fastest(lab: Lab, tries: Mapping[str, Run]) -> tuple[str, dict[str, float]]:
    """The way of waiting (OMP_WAIT_POLICY) that gives most tokens/s in one run each, and all of them.

    What we are held against is to be at its best.
    """
    rates = {policy: float((await run())["tokens_per_s"]) for policy, run in tries.items()}
    best = max(rates, key=lambda policy: rates[policy])
    lab.say(f"  held against OMP_WAIT_POLICY {best}, the fastest of {rates}")
    return best, rates


def serve_ours(lab: Lab, stack: Stack, *arguments: Word) -> Run:
    """A run of serve.py on our stack."""
    words = ("--url", stack.endpoint, "--model", stack.model_name, *arguments)
    return partial(lab.serve, *words, api_key=stack.api_key)


def load_of(concurrency: int, requests: int) -> tuple[Word, ...]:
    """Arguments for that many requests, `concurrency` at a time."""
    return "--concurrency", concurrency, "--requests", requests
