"""What guardrails cost: the check of a prompt, and each piece of an answer.

    python -m benchmarks.guardrails [--entries 10000] [--characters 4000] [--rounds 200] [--json FILE]

Texts are of invented words that each lack the last letter of a blocked one. So nothing is blocked, all of a
text is looked at, and every word is nearly found.
Prints medians and 95th percentiles of the time of one check, in milliseconds, for texts of ASCII and of other
letters, and of one piece of 5 characters of an answer, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path

from inferflux.common.text.guardrails.compiled import CompiledRules
from inferflux.common.text.guardrails.rules import Entry, RuleSet
from inferflux.common.text.guardrails.stream import StreamGuard

_LETTERS = {
    "ascii": "abcdefghijklmnopqrstuvwxyz",
    "latin": "aäbcdéèfgïjklñnoöpqrßtuüvwxyz",
    "wide": "".join(map(chr, range(0xFF41, 0xFF4E))),
    "han": "".join(map(chr, range(0x4E00, 0x5A00))),
}
_PATTERNS = (r"\b\d{3}-\d{2}-\d{4}\b", r"\b(?:\d[ -]?){13,16}\b", r"AKIA[0-9A-Z]{16}")
_PIECE = 5


@dataclass(frozen=True)
class Figures:
    """The times of one kind of check."""

    what: str
    median: float
    p95: float
    unit: str


def words(rng: random.Random, letters: str, n: int, size: int) -> list[str]:
    return ["".join(rng.choices(letters, k=rng.randint(size - 3, size + 3))) for _ in range(n)]


def timed(what: str, unit: str, scale: float, rounds: int, work: Callable[[], object]) -> Figures:
    """The time of `work`, over its rounds."""
    work()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * scale)
    return Figures(what, statistics.median(times), statistics.quantiles(times, n=20)[-1], unit)


def measure(entries: int, characters: int, rounds: int) -> list[Figures]:
    """The times of every kind of check."""
    rng = random.Random(1)
    found: list[Figures] = []
    for name, letters in _LETTERS.items():
        near = words(rng, letters[:-1], entries, 9)
        blocked = [Entry(word + letters[-1], rng.random() < 0.5) for word in near]
        text = " ".join(rng.sample(near, min(len(near), characters // 7)))[:characters]
        for patterns, what in (((), "entries"), (_PATTERNS, "entries and patterns")):
            rules = RuleSet(blocked=blocked, patterns=patterns)
            found += figures_of(f"{name}, {what}", CompiledRules(rules), text, rounds)
        found.append(
            timed(f"{name}: compile", "ms", 1e3, 3, partial(CompiledRules, RuleSet(blocked=blocked)))
        )
    return found


def figures_of(what: str, rules: CompiledRules, text: str, rounds: int) -> list[Figures]:
    """The check of a text that is harmless, and of a piece of it.

    Raises:
        RuntimeError: it is not.
    """
    if rules.check(text, 1) is not None:
        raise RuntimeError("the text is not harmless")
    pieces = cycle(text[i : i + _PIECE] for i in range(0, len(text), _PIECE))
    guard = StreamGuard([rules])
    return [
        timed(f"{what}: check", "ms", 1e3, rounds, partial(rules.check, text, 1)),
        timed(f"{what}: piece", "us", 1e6, rounds, lambda: guard.push(next(pieces))),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--characters", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = measure(options.entries, options.characters, options.rounds)
    for each in figures:
        print(f"{each.what:<40} median {each.median:9.3f} {each.unit}   p95 {each.p95:9.3f} {each.unit}")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in figures], indent=2) + "\n")


if __name__ == "__main__":
    main()
