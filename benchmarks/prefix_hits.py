"""How much of the prompts the prefix cache finds, against the best that its memory allows.

    python -m benchmarks.prefix_hits [--half-lives 1 32 128 512] [--json FILE]

The engine's own memory, tree and ledger run over cells that compute nothing. Two loads:

zipf           each request has one of 200 prefixes, by Zipf's law, and a question of its own. There are
               cells for 40 prefixes, and for one question and answer. Belady's optimum knows all requests to
               come, and evicts the prefix that is needed last.
conversations  60 conversations of 6 turns over 20 system prompts, by Zipf's law, the next turn of any of them
               next. There are cells for a third of what all of them hold at once.

Prints the part of all prefixes that was found, and the tokens found of those that an endless cache would
find.
A half-life of 1 request evicts what was not used for the longest time.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from inferflux.worker.engine.kv import radix
from inferflux.worker.engine.kv.prefix_sharing import FULL
from inferflux.worker.engine.memory.memory import Memory
from inferflux.worker.engine.memory.saved import SavedStates
from inferflux.worker.engine.plan.sequence import Sequence, sequence_of
from inferflux.worker.engine.tiers.tiers import Tiers

from .command_line import add_json, make_parser, positive, write_json
from .engine_loop import item_of

_VOCABULARY = 30_000
_QUESTION_TOKENS = 24
_ANSWER_TOKENS = 32
_SEQUENCES = 255


class Cells:
    """A KV cache that holds and computes nothing."""

    sequences = _SEQUENCES
    prefill_cells = 0
    cell_s = 0.0
    move_cost = None

    def __init__(self, cells: int) -> None:
        self.cells = cells

    holds_all_positions = True
    sharing = FULL
    spare_id = None

    def positions(self, _seq_id: int) -> tuple[int, int]:
        return -1, -1

    def compact(self) -> float:
        return 0.0

    def forget(self, seq_id: int, position: int = 0) -> None: ...

    def forget_prefill(self, seq_id: int) -> None: ...

    def share(self, source: int, seq_id: int, cells: int) -> None: ...

    def state_size(self, _seq_id: int) -> int:
        return 0

    def copy_out(self, _seq_id: int, _into: NDArray[np.uint8]) -> bool:
        return False

    def copy_in(self, _seq_id: int, _state: NDArray[np.uint8]) -> bool:
        return False

    def first_positions(self, _state: NDArray[np.uint8], _n: int) -> NDArray[np.uint8] | None:
        return None


class _NoPieces:
    eog = frozenset[int]()

    def control_token(self, _text: str) -> int | None:
        return None

    def piece(self, _token: int) -> bytes:
        return b""

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:  # noqa: ARG002
        return []


class Served:
    """An engine's memory, through which one request goes after the other."""

    def __init__(self, cells: int) -> None:
        cache = Cells(cells)
        tiers: Tiers[Sequence] = Tiers.off()
        self._memory = Memory(
            cache, SavedStates(cache, tiers, time.monotonic, longest_copy_s=1.0), has_prefix_cache=True
        )
        self._served = 0

    def serve(self, prompt: list[int], answer: list[int]) -> int:
        """Tokens of the prompt that were found."""
        memory, self._served = self._memory, self._served + 1
        item = item_of(self._served, prompt, len(answer))
        sequence = sequence_of(item, arrival=self._served, now_s=0.0, unix_s=0.0, pieces=_NoPieces())
        memory.load(sequence)
        memory.match(sequence)
        found = sequence.position
        memory.grow(sequence, sequence.n_pending)
        sequence.position = sequence.n_tokens
        memory.complete_prefill(sequence)
        for token in answer:
            sequence.append(token)
        memory.grow(sequence, sequence.n_pending - 1)  # the last token is not computed
        sequence.position = sequence.n_tokens - 1
        memory.remove(sequence)
        return found


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and its answer.

    Attributes:
        known: tokens of the prompt that were computed before.
        prefix: which of the common prefixes it begins with.
    """

    prompt: list[int]
    answer: list[int]
    known: int
    prefix: int


class Draw:
    """Tokens and prefixes at random."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def tokens(self, n: int) -> list[int]:
        return self._rng.choices(range(_VOCABULARY), k=n)

    def zipf(self, n: int, among: int, exponent: float) -> list[int]:
        return self._rng.choices(range(among), [1 / (i + 1) ** exponent for i in range(among)], k=n)

    def below(self, n: int) -> int:
        return self._rng.randrange(n)


def zipf_requests(options: argparse.Namespace, draw: Draw) -> Iterator[Request]:
    prefixes = [draw.tokens(options.prefix_tokens) for _ in range(options.prefixes)]
    seen: set[int] = set()
    for prefix in draw.zipf(options.requests, options.prefixes, options.exponent):
        known = options.prefix_tokens if prefix in seen else 0
        seen.add(prefix)
        question = draw.tokens(_QUESTION_TOKENS)
        yield Request(prefixes[prefix] + question, draw.tokens(_ANSWER_TOKENS), known, prefix)


def conversation_requests(options: argparse.Namespace, draw: Draw) -> Iterator[Request]:
    prefixes = [draw.tokens(options.prefix_tokens) for _ in range(options.system_prompts)]
    chosen = iter(draw.zipf(options.requests + options.conversations, options.system_prompts, 1.0))
    running: list[tuple[int, int, list[int]]] = []  # turn, prefix, all that was said
    seen: set[int] = set()
    for _ in range(options.conversations):
        first = next(chosen)
        running.append((draw.below(options.turns), first, prefixes[first]))
    for _ in range(options.requests):
        number = draw.below(len(running))
        turn, prefix, said = running[number]
        is_new = said is prefixes[prefix]
        known = len(said) - (not is_new) if prefix in seen or not is_new else 0
        seen.add(prefix)
        request = Request(said + draw.tokens(_QUESTION_TOKENS), draw.tokens(_ANSWER_TOKENS), known, prefix)
        yield request
        running[number] = turn + 1, prefix, request.prompt + request.answer
        if turn + 1 >= options.turns:
            following = next(chosen)
            running[number] = 0, following, prefixes[following]


def belady_hits(prefixes: list[int], places: int, first_counted: int) -> int:
    """Hits of the cache that evicts what is needed last, from request `first_counted` on."""
    never = len(prefixes)
    next_use = [never] * len(prefixes)
    later: dict[int, int] = {}
    for at in range(len(prefixes) - 1, -1, -1):
        next_use[at] = later.get(prefixes[at], never)
        later[prefixes[at]] = at
    held: dict[int, int] = {}
    hits = 0
    for at, prefix in enumerate(prefixes):
        hits += prefix in held and at >= first_counted
        if prefix not in held and len(held) == places:
            del held[max(held, key=held.__getitem__)]
        held[prefix] = next_use[at]
    return hits


def found_of(requests: Iterable[Request], cells: int, first_counted: int) -> tuple[int, int, list[int]]:
    """(tokens found, tokens known, tokens found of each request), from request `first_counted` on."""
    served = Served(cells)
    found, known, each = 0, 0, []
    for at, request in enumerate(requests):
        tokens = served.serve(request.prompt, request.answer)
        each.append(tokens)
        if at >= first_counted:
            found += tokens
            known += request.known
    return found, known, each


def zipf(options: argparse.Namespace, seed: int) -> dict[str, float]:
    requests = list(zipf_requests(options, Draw(seed)))
    cells = options.places * options.prefix_tokens + _QUESTION_TOKENS + _ANSWER_TOKENS
    skipped = options.requests // 5
    found, known, each = found_of(requests, cells, skipped)
    hits = sum(tokens >= options.prefix_tokens for tokens in each[skipped:])
    counted = len(each) - skipped
    best = belady_hits([request.prefix for request in requests], options.places, skipped)
    return {
        "hit_rate": hits / counted,
        "belady": best / counted,
        "of_belady": hits / best,
        "of_known": found / known,
    }


def conversations(options: argparse.Namespace, seed: int) -> dict[str, float]:
    a_turn = _QUESTION_TOKENS + _ANSWER_TOKENS
    held = (
        options.system_prompts * options.prefix_tokens + options.conversations * options.turns // 2 * a_turn
    )
    found, known, _ = found_of(conversation_requests(options, Draw(seed)), held // 3, options.requests // 5)
    return {"of_known": found / known}


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--prefixes", type=positive, default=200)
    parser.add_argument("--places", type=positive, default=40, help="prefixes that there are cells for")
    parser.add_argument("--exponent", type=float, default=1.0, help="of Zipf's law")
    parser.add_argument("--prefix-tokens", type=positive, default=256)
    parser.add_argument("--conversations", type=positive, default=60)
    parser.add_argument("--turns", type=positive, default=6)
    parser.add_argument("--system-prompts", type=positive, default=20)
    parser.add_argument("--requests", type=positive, default=5000, help="the first fifth is not counted")
    parser.add_argument("--half-lives", type=positive, nargs="+", default=[1, radix.HALF_LIFE])
    parser.add_argument("--seeds", type=positive, default=3)
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    found: dict[str, dict[int, dict[str, float]]] = {}
    for name, load in (("zipf", zipf), ("conversations", conversations)):
        found[name] = {}
        for half_life in options.half_lives:
            with mock.patch.object(radix, "HALF_LIFE", half_life):
                runs = [load(options, seed) for seed in range(options.seeds)]
            found[name][half_life] = {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}
        first = found[name][options.half_lives[0]]
        table = Table("half-life", *first, title=name)
        for half_life, figures in found[name].items():
            table.add_row(str(half_life), *(f"{value:.3f}" for value in figures.values()))
        Console().print(table)
    write_json(options, found)


if __name__ == "__main__":
    main()
