"""Measure the demo models on held-out prompts, greedily through llama.cpp.

    python -m tools.demo_model.evaluate --per-kind 100

Prints how many replies per kind are right, and how often the draft model guesses the demo model's next token.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import Llama
from rich.console import Console
from rich.progress import track
from rich.table import Table

from .chat_data import KINDS, held_out
from .chatml import prompt
from .sample import Reply, Sample
from .scoring import is_right

MAX_TOKENS = 220
CONTEXT = 2048


def load(path: Path, threads: int, *, all_logits: bool = False) -> Llama:
    """The model at ``path``."""
    return Llama(
        str(path),
        n_ctx=CONTEXT,
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=all_logits,
        verbose=False,
    )


def _prompt_ids(llama: Llama, sample: Sample) -> list[int]:
    text = prompt(sample.prompt, sample.tools)
    ids: list[int] = llama.tokenize(text.encode(), add_bos=False, special=True)
    return ids


def answer(llama: Llama, sample: Sample) -> Reply:
    """The model's greedy reply to a sample's prompt."""
    reply: Any = llama.create_completion(_prompt_ids(llama, sample), temperature=0.0, max_tokens=MAX_TOKENS)
    choice = reply["choices"][0]
    return Reply(choice["text"], reply["usage"]["completion_tokens"], ended=choice["finish_reason"] == "stop")


def accuracy(llama: Llama, samples: list[Sample], *, show_wrong: int = 0) -> dict[str, float]:
    """Share of right replies per kind."""
    right: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    for sample in track(samples, description="held-out prompts"):
        reply = answer(llama, sample)
        right[sample.kind].append(is_right(sample, reply))
        wrong = right[sample.kind].count(False)
        if not right[sample.kind][-1] and wrong <= show_wrong:
            print(f"{sample.kind}: {sample.question!r} -> {reply.text!r}, not {sample.answer!r}")
    return {kind: sum(found) / len(found) for kind, found in right.items()}


def agreement(demo: Llama, draft: Llama, samples: list[Sample]) -> float:
    """Share of the demo model's greedy tokens that the draft model, given all before them, would say too."""
    same = total = 0
    for sample in track(samples, description="draft agreement"):
        head = _prompt_ids(demo, sample)
        body = demo.tokenize(f"{answer(demo, sample).text}<|im_end|>".encode(), add_bos=False, special=True)
        draft.reset()
        draft.eval(head + body)
        guesses = np.argmax(draft.scores[len(head) - 1 : len(head) + len(body) - 1], axis=-1)
        same += int((guesses == np.array(body)).sum())
        total += len(body)
    return same / total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demo", type=Path, default=Path("models/inferflux-demo.gguf"))
    parser.add_argument("--draft", type=Path, default=Path("models/inferflux-demo-draft.gguf"))
    parser.add_argument("--per-kind", type=int, default=100, help="held-out prompts of each kind")
    parser.add_argument("--show-wrong", type=int, default=0, help="wrong replies to print per kind")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    args = parser.parse_args()
    samples = [sample for kind in KINDS for sample in held_out(kind, args.per_kind)]
    began = time.monotonic()
    demo = load(args.demo, args.threads)
    results = {"demo": accuracy(demo, samples, show_wrong=args.show_wrong)}
    figures: dict[str, Any] = {"per_kind": args.per_kind, "accuracy": results}
    if args.draft.exists():
        results["draft"] = accuracy(load(args.draft, args.threads), samples)
        some = [sample for kind in KINDS for sample in held_out(kind, min(20, args.per_kind))]
        figures["draft_agreement"] = agreement(demo, load(args.draft, args.threads, all_logits=True), some)
    table = Table("kind", *results, title=f"right of {args.per_kind} held-out prompts per kind")
    for kind in KINDS:
        table.add_row(kind, *(f"{scores[kind]:.1%}" for scores in results.values()))
    table.add_row("all", *(f"{sum(scores.values()) / len(scores):.1%}" for scores in results.values()))
    Console().print(table)
    if "draft_agreement" in figures:
        print(f"the draft guesses {figures['draft_agreement']:.1%} of the demo model's tokens")
    print(f"{time.monotonic() - began:.0f} s")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
