"""Serves a tiny model in every way that an engine can, and compares each answer with llama.cpp's.

    PYTHONPATH=tests python -m architectures.trying MODEL.gguf

It prints a line of JSON: by what was tried, empty where it works, else why not. llama.cpp may end it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from harness.serving import Served, load
from harness.worker import batch_item

from inferflux.v1 import worker_pb2
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.files.model_file import read_model_file

from .reference import Reference

BATCH_TOKENS: Final = 48
ANSWER: Final = 20
# Logits that differ by less than this part of their spread tie: keys and values are kept in half precision,
# and sums are taken in another order where more cells are used.
TIE: Final = 0.03


@dataclass
class Trial:
    """A model that is tried.

    Attributes:
        sharing: how its memory shares prefixes.
        compared: tokens that were compared, and `tied` of them that were not the very best.
    """

    path: Path
    reference: Reference
    draw: np.random.Generator
    n_vocab: int
    sharing: str = ""
    compared: int = 0
    tied: int = 0
    _backends: dict[tuple[int, int], Backend] = field(default_factory=dict)

    def served(self, *, cells: int = 2048, sequences: int = 16, has_prefix_cache: bool = True) -> Served:
        """An engine with an empty cache."""
        key = cells, sequences
        if key not in self._backends:
            options = {"batch_tokens": BATCH_TOKENS, "prefill_cells": 0}
            self._backends[key] = load(self.path, kv_cells=cells, sequences=sequences, **options)
        backend = self._backends[key]
        backend._main.clear()
        self.sharing = backend.sharing.kind.name.lower()
        return Served(backend, has_prefix_cache=has_prefix_cache, host_bytes=1 << 28)

    def prompt(self, n: int) -> list[int]:
        return [int(token) for token in self.draw.integers(10, min(self.n_vocab, 2000) - 10, n)]

    def check(self, served: Served, *items: worker_pb2.BatchItem, before: int = 0) -> None:
        """Each token is the best after those before it, or ties with it.

        Args:
            before: tokens of the answer that the request brought.

        Raises:
            AssertionError: one is not.
        """
        for item in items:
            request = item.request
            tokens = [*request.generated_token_ids[:before], *served.tokens[request.request_id]]
            assert len(tokens) == request.params.max_tokens, f"{len(tokens)} tokens"
            rows = self.reference.rows(list(request.prompt_token_ids), tokens)
            for i, (token, logits) in enumerate(zip(tokens, rows, strict=True)):
                behind = float(logits.max() - logits[token]) / float(logits.std())
                assert behind < TIE, f"{request.request_id}: token {i} is {behind:.3f} of the spread behind"
                self.compared += 1
                self.tied += behind > 0


def ask(name: str, ids: list[int], n: int = ANSWER) -> worker_pb2.BatchItem:
    item = batch_item(name, prompt=ids, max_tokens=n)
    item.request.params.ignore_eos = True
    return item


def serves(trial: Trial) -> None:
    """Prompts of one step and of several, one after the other, nothing kept."""
    items = [ask(f"alone{n}", trial.prompt(n)) for n in (3, 40, 130)]
    served = trial.served(has_prefix_cache=False)
    for item in items:
        served.run(item)
    trial.check(served, *items)


def batches(trial: Trial) -> None:
    """Several at once."""
    items = [ask(f"beside{n}", trial.prompt(n)) for n in (3, 30, 47, 90)]
    served = trial.served()
    served.run(*items)
    trial.check(served, *items)
    served.check_cells()


def caches(trial: Trial) -> None:
    """A conversation that goes on, one that branches, and one that is asked again."""
    served = trial.served()
    first = ask("first", trial.prompt(60))
    served.run(first)
    on = ask("on", [*first.request.prompt_token_ids, *served.tokens["first"], *trial.prompt(9)])
    served.run(on)
    again = ask("again", list(on.request.prompt_token_ids))
    served.run(again)
    branch = ask("branch", [*first.request.prompt_token_ids[:50], *trial.prompt(20)])
    served.run(branch)
    trial.check(served, first, on, again, branch)
    assert served.cached["on"] > 0, "nothing of the turn before is used"
    served.check_cells()


def parks(trial: Trial) -> None:
    """More than the cache holds: some are evicted to host memory, and go on."""
    served = trial.served(cells=256, sequences=4)
    items = [ask(f"parked{i}", trial.prompt(50), 60) for i in range(4)]
    served.run(*items)
    trial.check(served, *items)
    assert served.swap_ins > 0, "none was evicted"
    served.check_cells()


def moves(trial: Trial) -> None:
    """A request that another worker had begun; state that has left the cache for host memory."""
    served = trial.served(cells=256, sequences=4)
    ids = trial.prompt(40)
    begun = ask("begun", ids)
    served.run(begun)
    taken = batch_item("taken", prompt=ids, generated=served.tokens["begun"][:9], max_tokens=ANSWER, epoch=2)
    taken.request.params.ignore_eos = True
    other = trial.served()
    other.run(taken)
    trial.check(other, taken, before=9)
    for i in range(3):
        served.run(ask(f"other{i}", trial.prompt(150)))
    back = ask("back", [*ids, *trial.prompt(10)])
    served.run(back)
    trial.check(served, begun, back)


TRIALS: Final[dict[str, Callable[[Trial], None]]] = {
    "serves": serves,
    "batches": batches,
    "caches": caches,
    "parks": parks,
    "moves": moves,
}


def try_out(path: Path) -> dict[str, str]:
    """By what was tried: empty, or why it does not work. `sharing` says how prefixes are shared."""
    found: dict[str, str] = {}
    n_vocab = read_model_file(path).facts.vocabulary_size
    with Reference(path, batch_tokens=BATCH_TOKENS) as reference:
        trial = Trial(path, reference, np.random.default_rng(5), n_vocab)
        for name, run in TRIALS.items():
            try:
                run(trial)
                found[name] = ""
            except Exception as error:  # noqa: BLE001 - what fails is what is asked for
                found[name] = f"{type(error).__name__}: {error}"[:300]
    return found | {"sharing": trial.sharing, "tied": f"{trial.tied} of {trial.compared}"}


if __name__ == "__main__":
    print(json.dumps(try_out(Path(sys.argv[1]))))
