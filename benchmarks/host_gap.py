"""Host time between two calls of `llama_decode`: what a GPU waits for.

    python -m benchmarks.host_gap [--only b32_sampled_v2048 ...] [--json FILE]

An engine decodes with `llama_decode` taken out: its logits are made up beforehand. All else is as in the
engine process: commands are polled for, the batch is filled, tokens are sampled, a report goes through a
socket to another process. Prints microseconds per token for each batch size, way of sampling and vocabulary.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from inferflux.common.process.child.frames import ChildEnd
from inferflux.v1 import engine_pb2, worker_pb2
from inferflux.worker.engine.__main__ import Inbox, Outbox, serve_step
from inferflux.worker.engine.kv.prefix_sharing import PrefixSharing, Sharing
from inferflux.worker.engine.llama.batch import Batch
from inferflux.worker.engine.llama.trials import Timing
from inferflux.worker.engine.plan.planner import StepPlan
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.tiers.tiers import Tiers

from .load.command_line import add_json, make_parser, positive, write_json

BATCHES = (8, 32, 128)
VOCABULARIES = (2048, 128_256)
SAMPLED = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
KINDS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "sampled": SAMPLED,
    "logprobs": {**SAMPLED, "logprobs": 5},
}
_PROMPT_TOKENS = 16
_MOST_TOKENS = 100_000
# Different logits, so that a step finds its own as cold in the caches as a backend leaves them.
_MATRICES = 3
_SPREAD = 3.0
_WARM_UP_STEPS = 10


class _Vocabulary:
    """Tokens of a few letters each."""

    eog = frozenset[int]()

    def __init__(self, size: int) -> None:
        self.size = size
        self._pieces = [f" t{token:x}".encode() for token in range(size)]

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def piece_text(self, token: int) -> str:
        return self._pieces[token].decode()


class SilentBackend:
    """A backend that fills its batch and computes nothing."""

    context_length = _MOST_TOKENS
    batch_tokens = 2048
    prefill_cells = 0
    long_step_tokens = 0
    long_mixed_tokens = 0
    adapter_switches = 0
    shortest_suffix = 0
    cells = 1 << 30
    sequences = 256
    sharing_error = "it computes nothing"
    sharing = PrefixSharing(Sharing.NONE, sharing_error)
    speculation_error = sharing_error
    cell_s = 0.0
    move_cost = None

    def __init__(self, vocabulary: int, rows: int) -> None:
        self.vocab = _Vocabulary(vocabulary)
        rng = np.random.default_rng(1)
        shape = (rows, vocabulary)
        made = [rng.standard_normal(shape, np.float32) * np.float32(_SPREAD) for _ in range(_MATRICES)]
        self._logits = itertools.cycle(made)
        self._batch = Batch(self.batch_tokens)
        self._plan = StepPlan([], [], in_prefill_context=False)

    def warm_up(self) -> list[Timing]:
        return [Timing(16, 0, 0.001), Timing(64, 0, 0.002), Timing(0, 1, 0.001)]

    def decode(self, plan: StepPlan, _is_interrupted: object = None) -> NDArray[np.float32]:
        self._plan = plan
        n_tokens, n_rows = self._batch.fill(plan.parts)
        self._batch.struct(n_tokens)
        return next(self._logits)[:n_rows]

    def positions(self, seq_id: int) -> tuple[int, int]:
        """Return the positions that the latest step's sequences should have."""
        held = {part.sequence.seq_id: part.sequence.position for part in self._plan.parts}.get(seq_id)
        return (0, held - 1) if held else (-1, -1)

    def forget(self, seq_id: int, position: int = 0) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class Case:
    """A case that is measured."""

    batch: int
    kind: str
    vocabulary: int

    @property
    def name(self) -> str:
        return f"b{self.batch}_{self.kind}_v{self.vocabulary}"


def cases() -> list[Case]:
    """Every combination."""
    return list(itertools.starmap(Case, itertools.product(BATCHES, KINDS, VOCABULARIES)))


def item_of(index: int, kind: str) -> worker_pb2.BatchItem:
    """A request that goes on for as long as it is measured."""
    item = worker_pb2.BatchItem(slot=index)
    request = item.request
    request.tenant, request.request_id, request.epoch = "bench", f"request-{index}", 1
    request.prompt_token_ids.extend(range(_PROMPT_TOKENS))
    request.params.max_tokens = _MOST_TOKENS
    request.params.ignore_eos = True
    sampling = request.params.sampling
    for name, value in KINDS[kind].items():
        setattr(sampling, name, value)
    sampling.seed = index
    return item


def us_per_token(case: Case, backend: Any, steps: int, rounds: int) -> float:
    """Microseconds of the host for each token in the fastest round: others only add to it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = subprocess.Popen(["/bin/cat"], stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        engine = Engine(backend, worker_id="bench", tiers=Tiers.off(), max_itl_factor=5.0, step_limit_s=10.0)
        channel = ChildEnd(ours, engine_pb2.EngineCommand.FromString)
        inbox, outbox = Inbox(channel), Outbox(channel)
        for index in range(case.batch):
            engine.start(item_of(index, case.kind))
        for _ in range(_WARM_UP_STEPS):
            serve_step(engine, channel, inbox, outbox)
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            for _ in range(steps):
                serve_step(engine, channel, inbox, outbox)
            times.append((time.perf_counter() - began) / (steps * case.batch))
        outbox.send()
        ours.shutdown(socket.SHUT_WR)
        reader.wait()
    return min(times) * 1e6


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    names = [case.name for case in cases()]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="CASE")
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--steps", type=positive, default=100, help="of a round; fewer of large vocabularies")
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    chosen = [case for case in cases() if case.name in options.only]
    found: dict[str, float] = {}
    for case in track(chosen, description="cases", console=Console(stderr=True)):
        steps = max(options.steps * VOCABULARIES[0] // case.vocabulary, 5)
        backend = SilentBackend(case.vocabulary, case.batch)
        found[case.name] = round(us_per_token(case, backend, steps, options.rounds), 2)
    table = Table("batch", "vocabulary", *KINDS, title="microseconds of the host per token")
    for batch, vocabulary in itertools.product(BATCHES, VOCABULARIES):
        row = [found.get(Case(batch, kind, vocabulary).name) for kind in KINDS]
        table.add_row(str(batch), f"{vocabulary:,}", *("" if us is None else f"{us:.1f}" for us in row))
    Console().print(table)
    write_json(options, {"us_per_token": found})


if __name__ == "__main__":
    main()
