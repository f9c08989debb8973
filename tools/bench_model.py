"""Write a model of any shape with random weights: by default 0.5 billion, with a large vocabulary.

    python -m tools.bench_model --layers 24 --dim 1024 --out models/bench-0.5b.gguf

The model loads and runs like a trained one of its size; what it says means nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

import numpy as np

from tools.llama_gguf import QUANTS, SPECIALS, LlamaSpec, Vocabulary, Weights, write_llama

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LONGEST_TOKEN = 12


def byte_tokens() -> list[str]:
    """The 256 single bytes as printable characters, in the mapping of byte-level BPEs."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def synthetic_vocabulary(size: int, seed: int = 0) -> Vocabulary:
    """A byte-level BPE of ``size`` tokens whose merges join letters into made-up words, some after a space.

    Raises:
        ValueError: ``size`` leaves no room for the bytes and the special tokens.
    """
    tokens = byte_tokens()
    if size < len(tokens) + len(SPECIALS):
        raise ValueError(f"a byte-level vocabulary has at least {len(tokens) + len(SPECIALS)} tokens")
    rng, known, merges = Random(seed), set(tokens), []
    space = chr(256 + ord(" "))
    heads, tails = [space, *LETTERS], list(LETTERS)
    while len(tokens) < size - len(SPECIALS):
        left, right = rng.choice(heads), rng.choice(tails)
        word = left + right
        if word in known or len(word) > LONGEST_TOKEN:
            continue
        known.add(word)
        tokens.append(word)
        merges.append(f"{left} {right}")
        heads.append(word)
        if not word.startswith(space):
            tails.append(word)
    return Vocabulary([*tokens, *SPECIALS], merges)


class RandomWeights:
    """Normal weights scaled by the fan-in, so that logits are of ordinary size and depend on the context.

    The special tokens' rows are zero: their logits are too, and a greedy answer does not end by itself.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, name: str, shape: tuple[int, ...]) -> Weights:
        if len(shape) == 1:
            return np.ones(shape, dtype=np.float32)
        values: Weights = self._rng.standard_normal(shape, dtype=np.float32)
        values *= shape[1] ** -0.5
        if name in ("token_embd.weight", "output.weight"):
            values[-len(SPECIALS) :] = 0.0
        return values


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The shape asked for on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--ff", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quant", choices=QUANTS, default="Q4_0")
    parser.add_argument("--untied", action="store_true", help="give the output layer weights of its own")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(arguments)


def write(args: argparse.Namespace) -> LlamaSpec:
    """Write the model that ``args`` describe to ``args.out``, which is there only once it is whole."""
    out: Path = args.out
    spec = LlamaSpec(
        name=out.stem,
        layers=args.layers,
        dim=args.dim,
        heads=args.heads,
        kv_heads=args.kv_heads,
        ff=args.ff,
        context=args.context,
        vocab=args.vocab,
        quant=args.quant,
        tied=not args.untied,
        description="Random weights for benchmarks",
    )
    draft = out.with_suffix(".part.gguf")
    write_llama(draft, spec, synthetic_vocabulary(spec.vocab, args.seed), RandomWeights(args.seed))
    draft.replace(out)
    return spec


if __name__ == "__main__":
    options = parse()
    write(options)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")
