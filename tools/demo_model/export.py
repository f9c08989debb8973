"""Turn a trained checkpoint into a GGUF file: ``python -m tools.demo_model.export demo``."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tools.llama_gguf import LlamaSpec, Weights, write_llama

from .model import NORM_EPSILON, ROPE_BASE, SHAPES
from .tokenizer import load_tokenizer, vocabulary

DESCRIPTIONS = {
    "demo": "A very small chat model that shows InferFlux at work",
    "draft": "Guesses ahead for inferflux-demo",
}


def spec_of(name: str) -> LlamaSpec:
    """What the header of the file of the model called ``name`` says."""
    shape = SHAPES[name]
    return LlamaSpec(
        name=shape.name,
        layers=shape.layers,
        dim=shape.dim,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        ff=shape.ff,
        context=shape.context,
        vocab=shape.vocab,
        rope_base=ROPE_BASE,
        norm_epsilon=NORM_EPSILON,
        description=DESCRIPTIONS[name],
    )


def export(name: str, work: Path, out: Path) -> Path:
    """Write the model called ``name``, trained in ``work``, to ``out/<its public name>.gguf``."""
    spec = spec_of(name)
    state = torch.load(work / f"{name}.pt")["model"]

    def weights(tensor: str, _: tuple[int, ...]) -> Weights:
        values: Weights = state[tensor].numpy()
        return values

    path = out / f"{spec.name}.gguf"
    write_llama(path, spec, vocabulary(load_tokenizer(work / "tokenizer.json")), weights)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument(
        "--work", type=Path, default=Path("build/demo_model"), help="where the training left its files"
    )
    parser.add_argument("--out", type=Path, default=Path("models"))
    args = parser.parse_args()
    path = export(args.model, args.work, args.out)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
