"""The tree of prefixes alone: how long a lookup takes, and what memory its token ids take.

    python -m benchmarks.radix [--sequences 10000] [--tokens 8000] [--json FILE]

Sequences are conversations over common beginnings: each shares its first half with others, and so on down.
The prompts that are looked up go on from a cached one. Prints the median and the 99th percentile of a lookup,
and the bytes of the tree for each byte of token ids it holds.
"""

from __future__ import annotations

import gc
import json
import time
import tracemalloc

import numpy as np
from rich.console import Console

from inferflux.worker.engine.kv.radix import RadixPrefixCache, TokenArray

from .command_line import add_json, make_parser, positive, write_json
from .stats import percentile

_VOCABULARY = 32_000
_ID_BYTES = 4
_SCOPE = "tenant/bench"


def conversations(n: int, tokens: int, rng: np.random.Generator) -> list[TokenArray]:
    """`n` sequences of up to `tokens` ids, each of which begins like an earlier one."""
    made: list[TokenArray] = []
    for index in range(n):
        length = int(rng.integers(tokens // 16, tokens // 4))
        beginning = made[int(rng.integers(index))] if index % 4 and made else made[0][:0] if made else None
        kept = beginning[: int(rng.integers(beginning.shape[0] + 1))] if beginning is not None else None
        own = rng.integers(_VOCABULARY, size=length).astype(np.int32)
        whole = own if kept is None else np.concatenate([kept, own])
        made.append(whole[:tokens].astype(np.int32))
    return made


def filled(sequences: list[TokenArray]) -> tuple[RadixPrefixCache, float]:
    """(a tree that holds them, bytes it takes for each byte of ids it has)."""
    gc.collect()
    tracemalloc.start()
    tree = RadixPrefixCache()
    for holder, tokens in enumerate(sequences):
        tree.hold(_SCOPE, tokens, holder)
        tree.unpin(holder)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return tree, taken / (tree.n_tokens * _ID_BYTES)


def lookup_times(tree: RadixPrefixCache, prompts: list[TokenArray]) -> list[float]:
    """Seconds of each lookup."""
    times = []
    for prompt in prompts:
        began = time.perf_counter()
        tree.lookup(_SCOPE, prompt)
        times.append(time.perf_counter() - began)
    return times


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--sequences", type=positive, default=10_000)
    parser.add_argument("--tokens", type=positive, default=8000, help="of a prompt that is looked up")
    parser.add_argument("--lookups", type=positive, default=2000)
    add_json(parser)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    sequences = conversations(options.sequences, options.tokens, rng)
    tree, bytes_ratio = filled(sequences)
    prompts = []
    for _ in range(options.lookups):
        known = sequences[int(rng.integers(len(sequences)))]
        rest = rng.integers(_VOCABULARY, size=options.tokens - known.shape[0]).astype(np.int32)
        prompts.append(np.concatenate([known, rest]))
    longest = max(sequences, key=len)
    whole = [np.resize(longest, options.tokens)] * options.lookups
    measured = lookup_times(tree, prompts) + lookup_times(tree, whole)
    times_ms = sorted(seconds * 1000 for seconds in measured)
    found = {
        "lookup_ms": {"p50": percentile(times_ms, 0.5), "p99": percentile(times_ms, 0.99)},
        "tokens_held": tree.n_tokens,
        "bytes_per_id_byte": bytes_ratio,
    }
    Console().print_json(json.dumps(found))
    write_json(options, found)


if __name__ == "__main__":
    main()
