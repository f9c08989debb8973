"""Write the mean of files of one model: ``python -m tools.demo_model.average demo before.gguf after.gguf``.

Training on what a model lacks has it forget some of what it knew. Between the weights before and after, both
are there, as long as one was trained on from the other (Wortsman et al., Model soups, 2022).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.llama_gguf import mean_llama, write_llama

from .export import spec_of
from .model import SHAPES


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("files", type=Path, nargs="+", help="each counts alike")
    parser.add_argument("--out", type=Path, default=Path("models"))
    args = parser.parse_args()
    spec = spec_of(args.model)
    vocabulary, weights = mean_llama(args.files)
    path = args.out / f"{spec.name}.gguf"
    write_llama(path, spec, vocabulary, lambda tensor, _: weights[tensor])
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
