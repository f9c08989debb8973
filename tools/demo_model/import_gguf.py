"""Turn a published GGUF file back into a checkpoint: ``python -m tools.demo_model.import_gguf demo``.

Training then goes on from the published weights, with the published vocabulary, at step 0 of a new schedule.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tools.llama_gguf import read_llama

from .model import SHAPES, Transformer
from .tokenizer import from_vocabulary


def import_gguf(name: str, path: Path, work: Path) -> Path:
    """Write the weights of ``path`` to ``work/<name>.pt``, and its tokenizer beside them.

    Raises:
        FileExistsError: ``work`` holds a checkpoint of this model, or another tokenizer.
        RuntimeError: the tensors are not those of the model called ``name``.
    """
    known, weights = read_llama(path)
    model = Transformer(SHAPES[name])
    model.load_state_dict({tensor: torch.from_numpy(values) for tensor, values in weights.items()})
    tokenizer = from_vocabulary(known).to_str(pretty=True)
    work.mkdir(parents=True, exist_ok=True)
    beside = work / "tokenizer.json"
    if beside.exists() and beside.read_text() != tokenizer:
        raise FileExistsError(f"{beside} is of another vocabulary than {path}")
    checkpoint = work / f"{name}.pt"
    if checkpoint.exists():
        raise FileExistsError(f"{checkpoint} exists: move it away first")
    beside.write_text(tokenizer)
    torch.save({"model": model.state_dict(), "optimizers": [], "seconds": 0.0, "step": 0}, checkpoint)
    return checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("--gguf", type=Path, help="the file; that of models/ when left out")
    parser.add_argument("--work", type=Path, default=Path("build/demo_model"), help="where training looks")
    args = parser.parse_args()
    path = args.gguf or Path("models") / f"{SHAPES[args.model].name}.gguf"
    print(import_gguf(args.model, path, args.work))


if __name__ == "__main__":
    main()
