"""Train a demo model on two CPU cores: ``python -m tools.demo_model.train demo --steps 1000``.

A run that was interrupted goes on from its last checkpoint. SIGTERM ends it after a step, with a checkpoint.
"""

from __future__ import annotations

import argparse
import math
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from torch import Tensor, nn

from tools.llama_gguf import END_OF_TEXT

from .chat_data import conversations
from .chatml import pieces
from .model import SHAPES, Transformer
from .muon import Muon
from .sample import Sample
from .stories import write_story
from .tokenizer import load_tokenizer

TOKENS_PER_PART = 2048
LENGTHS, LENGTH_WEIGHTS = (256, 512, 1024), (0.30, 0.50, 0.20)
RAW_TEXT_SHARE = 0.01
WARM_UP_STEPS = 50
STEADY_SHARE = 0.5
"""Part of the run at the full learning rate; it then falls to zero in a straight line."""


class Packer:
    """Turns conversations into rows of tokens with no padding to speak of."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = Random(seed)
        self._stop = tokenizer.token_to_id(END_OF_TEXT)
        self._short = conversations(seed, tools_share=0.02)
        self._long = conversations(seed + 1, long_share=0.5, tools_share=0.7)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def _document(self, sample: Sample) -> tuple[list[int], list[bool]]:
        """A conversation's tokens in ChatML, and which of them the model learns to say."""
        ids: list[int] = []
        learn: list[bool] = []
        for piece in pieces(sample.messages, sample.tools):
            head, body, tail = (self._encode(text) for text in (piece.head, piece.body, piece.tail))
            ids += head + body + tail
            learn += [False] * len(head) + [piece.learn] * len(body) + [False] * len(tail)
        return ids, learn

    def _raw_text(self) -> tuple[list[int], list[bool]]:
        ids = [*self._encode(write_story(self._rng).answer), self._stop]
        return ids, [True] * len(ids)

    def _row(self, length: int) -> tuple[list[int], list[int], list[bool]]:
        source = self._short if length <= LENGTHS[0] else self._long
        ids: list[int] = []
        documents: list[int] = []
        learn: list[bool] = []
        misses = 0
        while len(ids) < length and misses < 8:
            raw = self._rng.random() < RAW_TEXT_SHARE
            more, more_learn = self._raw_text() if raw else self._document(next(source))
            if len(ids) + len(more) > length:
                misses += 1
                continue
            documents += [len(documents) + 1] * len(more)
            ids += more
            learn += more_learn
        missing = length - len(ids)
        return ids + [self._stop] * missing, documents + [0] * missing, learn + [False] * missing

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Tokens, document numbers and what to learn, each (rows, length), without end."""
        while True:
            length = self._rng.choices(LENGTHS, LENGTH_WEIGHTS)[0]
            rows = [self._row(length) for _ in range(TOKENS_PER_PART // length)]
            ids, documents, learn = zip(*rows, strict=True)
            yield torch.tensor(ids), torch.tensor(documents), torch.tensor(learn)


def optimizers(model: Transformer, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for the embedding and the norms."""
    matrices = [w for n, w in model.named_parameters() if w.dim() == 2 and "token_embd" not in n]
    others = [w for n, w in model.named_parameters() if w.dim() != 2 or "token_embd" in n]
    return [
        Muon(matrices, lr=rate),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


Batch = tuple[Tensor, Tensor, Tensor]


def part_gradients(model: Transformer, batch: Batch, *, bf16: bool) -> tuple[float, int, tuple[Tensor, ...]]:
    """Summed loss, number of tokens learned and gradients of one part of a step."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        loss = model.loss(*batch)
    learned = int(batch[2][:, 1:].sum())
    return loss.item(), learned, torch.autograd.grad(loss, list(model.parameters()))


def accumulate(model: Transformer, batches: list[Batch], pool: ThreadPoolExecutor, *, bf16: bool) -> float:
    """Leave the mean gradient over all batches in the model, and return the mean loss.

    Each thread computes a whole part on one core and then takes the next: unlike threads inside every
    operation, they do not wait for each other when other programs hold a core.
    """
    parts = list(pool.map(lambda batch: part_gradients(model, batch, bf16=bf16), batches))
    learned = sum(part[1] for part in parts)
    for i, weight in enumerate(model.parameters()):
        weight.grad = sum(part[2][i] for part in parts) / learned
    return sum(part[0] for part in parts) / learned


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train.

    Attributes:
        steps: Where the schedule ends; a resumed run counts on.
        minutes: Where it ends too, if that is sooner: the learning rate then falls with the time.
        rate: The highest learning rate.
        parts: Parts of 2,048 tokens in a step.
        seed: What data and weights are drawn from.
        threads: Parts that are computed at a time.
        bf16: Compute in it where that does no harm, for processors that can.
    """

    steps: int
    minutes: float
    rate: float
    parts: int
    seed: int
    threads: int
    bf16: bool

    def done(self, step: int, seconds: float) -> float:
        """How much of the schedule is over, 1.0 at its end."""
        return max(step / self.steps, seconds / 60 / self.minutes)

    def rate_at(self, step: int, done: float) -> float:
        """The learning rate: a warm-up, then steady, then down to zero in a straight line."""
        return self.rate * min(1.0, (step + 1) / WARM_UP_STEPS, (1 - done) / (1 - STEADY_SHARE))


def train(name: str, out: Path, plan: Plan) -> None:
    """Train the model called ``name`` and leave its checkpoint at ``out/<name>.pt``."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    torch.manual_seed(plan.seed)
    model = Transformer(SHAPES[name])
    optims = optimizers(model, plan.rate)
    checkpoint, spent, step = out / f"{name}.pt", 0.0, 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        if state["optimizers"]:  # an imported model has none
            for optim, saved in zip(optims, state["optimizers"], strict=True):
                optim.load_state_dict(saved)
        spent, step = state["seconds"], state["step"]
    batches = Packer(load_tokenizer(out / "tokenizer.json"), plan.seed + 1000 * step).batches()

    def save() -> None:
        part = checkpoint.with_suffix(".part")
        states = [optim.state_dict() for optim in optims]
        torch.save({"model": model.state_dict(), "optimizers": states, "seconds": spent, "step": step}, part)
        part.replace(checkpoint)

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    pool = ThreadPoolExecutor(plan.threads)
    with pool, Progress(*columns) as progress:
        bar = progress.add_task(name, total=plan.steps, completed=step)
        while (done := plan.done(step, spent)) < 1 and not stopped:
            began = time.monotonic()
            for group in (group for optim in optims for group in optim.param_groups):
                group["lr"] = plan.rate_at(step, done)
            loss = accumulate(model, [next(batches) for _ in range(plan.parts)], pool, bf16=plan.bf16)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optim in optims:
                optim.step()
                optim.zero_grad()
            step += 1
            spent += time.monotonic() - began
            speed = TOKENS_PER_PART * plan.parts / (time.monotonic() - began)
            told = f"{name} {step} loss {loss:.4f} {speed:.0f} tok/s"
            progress.update(bar, completed=step, description=told)
            if step % 20 == 0:
                progress.console.print(f"{spent:7.0f}s {told}")
            if step % 50 == 0:
                save()
    save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo_model"), help="checkpoints and the tokenizer"
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end earlier, after this time")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--parts", type=int, default=4, help="parts of 2,048 tokens in a step")
    parser.add_argument("--bf16", action="store_true", help="for processors that compute in it (AMX)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(args.steps, args.minutes, args.rate, args.parts, args.seed, args.threads, args.bf16)
    train(args.model, args.out, plan)


if __name__ == "__main__":
    main()
