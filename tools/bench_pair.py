"""Write a model with random weights and a draft model for it, for benchmarks of speculation.

    python -m tools.bench_pair --out models/bench-pair.gguf --draft-out models/bench-pair-draft.gguf

The draft has the first layers of the model, with the same weights. The layers after them add `--later` times
what they would: so both models say the same next token often, and seldom where it is large.
"""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path

import numpy as np

from tools.bench_model import synthetic_vocabulary
from tools.llama_gguf import QUANTS, SPECIALS, LlamaSpec, Weights, write_llama

_ADDS = ("attn_output.weight", "ffn_down.weight")


class PairWeights:
    """As `RandomWeights`, the same for a tensor of either model.

    Args:
        first: layers that both have.
        later: by what the output of the layers after them is multiplied.
    """

    def __init__(self, seed: int, *, first: int, later: float) -> None:
        self._seed = seed
        self._first = first
        self._later = later

    def __call__(self, name: str, shape: tuple[int, ...]) -> Weights:
        if len(shape) == 1:
            return np.ones(shape, dtype=np.float32)
        draw = np.random.default_rng((self._seed, zlib.crc32(name.encode())))
        values: Weights = draw.standard_normal(shape, dtype=np.float32)
        values *= shape[1] ** -0.5
        if name in ("token_embd.weight", "output.weight"):
            values[-len(SPECIALS) :] = 0.0
        elif name.endswith(_ADDS) and int(name.split(".")[1]) >= self._first:
            values *= self._later
        return values


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The shapes asked for on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--draft-layers", type=int, default=1)
    parser.add_argument("--later", type=float, default=0.1)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--ff", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quant", choices=QUANTS, default="Q8_0")
    parser.add_argument("--out", type=Path, default=Path("models/bench-pair.gguf"))
    parser.add_argument("--draft-out", type=Path, default=Path("models/bench-pair-draft.gguf"))
    return parser.parse_args(arguments)


def write(args: argparse.Namespace) -> None:
    """Write the two models that ``args`` describe."""
    weights = PairWeights(args.seed, first=args.draft_layers, later=args.later)
    for out, layers in ((args.out, args.layers), (args.draft_out, args.draft_layers)):
        spec = LlamaSpec(
            name=out.stem,
            layers=layers,
            dim=args.dim,
            heads=args.heads,
            kv_heads=args.kv_heads,
            ff=args.ff,
            context=args.context,
            vocab=args.vocab,
            quant=args.quant,
            tied=True,
            description="Random weights for benchmarks of speculation",
        )
        write_llama(out, spec, synthetic_vocabulary(spec.vocab, args.seed), weights)


if __name__ == "__main__":
    options = parse()
    write(options)
    for path in (options.out, options.draft_out):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
