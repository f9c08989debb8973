"""What holes in the KV cache cost a step, what it takes to close them, and what that gains.

    python -m benchmarks.kv_compaction [--model-file FILE] [--cells 16384] [--threads N] [--type f16]
    python -m benchmarks.kv_compaction --traffic [--requests 80] [--rounds 3] ...
    python -m benchmarks.kv_compaction --burst [--rounds 3] ...

A step goes through all cells up to the highest filled one. Sequences are laid out in pieces all over the
cache, with holes between them; their steps are timed, then all filled cells are moved down, and the same
steps are timed again. Prints medians of several rounds in one process. Times are the process's CPU seconds:
on one thread, the default, other processes disturb them little.

With `--traffic`, an engine serves the same requests of random lengths in turn with compaction and without,
with cached prefixes and without; none shares a prefix. With `--burst`, two long answers to short prompts
begin while fourteen long prompts fill the cache; what is timed is how they go on alone.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from inferflux.worker.processes.engine_process import SPIN_COUNT

from .stats import median
from .step_cost import sequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferflux.v1 import worker_pb2
    from inferflux.worker.engine.llama.native import Backend
    from inferflux.worker.engine.step.core import Engine

ROWS = (1, 4, 16)
_SLOTS = max(ROWS)
_TOKENS = 64
_PIECES = 16
_FILLER = 16
_ROUNDS = 3
_STEPS = 7
# Of ten requests one is a long answer to a short prompt, the others are short answers to long prompts.
_LONG_ANSWERS = 0.1


class Layout:
    """Sequences of some tokens each, and steps of one token of each of them."""

    def __init__(self, backend: Backend, rows: int) -> None:
        self._backend = backend
        self._context = backend._main  # noqa: SLF001 - nothing else lays cells out
        self._rows = range(rows)
        self._filler_id = rows

    def scatter(self, width: int) -> None:
        """Lay the sequences out up to `width` cells, in pieces with holes between them."""
        context = self._context
        context.clear()
        context.decode_tokens(np.full(_FILLER, 7, np.int32), seq_id=0, position=0)
        filler = np.empty(context.state_size(0), np.uint8)
        context.copy_out(0, filler)
        context.clear()
        piece = _TOKENS // _PIECES
        gap = (width - len(self._rows) * _TOKENS) // _PIECES
        for i in range(_PIECES):
            for _ in range(gap // _FILLER):
                context.append(self._filler_id, filler)
            self._decode(piece, i * piece)
        context.forget(self._filler_id)

    def step_ms(self) -> float:
        """Median milliseconds of a step."""
        times = []
        for _ in range(_STEPS):
            began = time.process_time()
            self._decode(1, _TOKENS)
            times.append(time.process_time() - began)
            for seq_id in self._rows:
                self._backend.forget(seq_id, _TOKENS)
        return median(times) * 1000

    def compact_ms(self) -> float:
        """Milliseconds that the move takes."""
        began = time.process_time()
        self._backend.compact()
        return (time.process_time() - began) * 1000

    def _decode(self, n: int, position: int) -> NDArray[np.float32]:
        from inferflux.worker.engine.plan.planner import ScheduledTokens, StepPlan

        parts = [ScheduledTokens(sequence(i, n, position, 0), n, n_logits=1) for i in self._rows]
        return self._backend.decode(StepPlan(decoding=parts, prefilling=[], in_prefill_context=False))


def measure(backend: Backend, rows: int, width: int) -> tuple[float, float, float]:
    """Milliseconds of a step with holes, of one without, and of the move."""
    layout = Layout(backend, rows)
    with_holes, without, moves = [], [], []
    for _ in range(_ROUNDS):
        layout.scatter(width)
        with_holes.append(layout.step_ms())
        moves.append(layout.compact_ms())
        without.append(layout.step_ms())
    return median(with_holes), median(without), median(moves)


def steps_table(backend: Backend) -> Table:
    """A row for each number of sequences and each width."""
    table = Table("rows", "filled", "width", "with holes, ms", "without, ms", "ratio", "move, ms")
    for rows in ROWS:
        for width in (1024, 4096, 16384, 65536):
            if 2 * rows * _TOKENS <= width <= backend.cells:
                before, after, move = measure(backend, rows, width)
                ratio = before / after
                times = (f"{before:.2f}", f"{after:.2f}", f"{ratio:.2f}", f"{move:.1f}")
                table.add_row(str(rows), str(rows * _TOKENS), str(width), *times)
    return table


class Traffic:
    """An engine whose slots always run something."""

    def __init__(self, engine: Engine, vocabulary: int, seed: int) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._draw = np.random.default_rng(seed)
        self._slots: dict[str, int] = {}
        self._n = 0

    def serve(self, requests: int) -> tuple[float, int, float, float, int]:
        """Serve until this many have ended.

        Returns:
            CPU seconds, decoded tokens, mean width, mean part of it that is empty, moves.
        """
        for slot in range(_SLOTS):
            self._start(slot)
        return self._run(requests, is_closed_loop=True)

    def burst(self) -> tuple[float, int, float, float, int]:
        """As `serve`, of what goes on after a burst."""
        for slot in range(_SLOTS - 2):
            self._begin(1000, 8, slot)
        for slot in range(_SLOTS - 2, _SLOTS):
            self._begin(20, 800, slot)
        self._run(_SLOTS - 2, is_closed_loop=False)
        return self._run(2, is_closed_loop=False)

    def _run(self, requests: int, *, is_closed_loop: bool) -> tuple[float, int, float, float, int]:
        began = time.process_time()
        decoded = moves = ended = 0
        widths, holes = [], []
        while ended < requests:
            self._engine.step()
            report = self._engine.take_report()
            if report is None:
                continue
            stats = report.step.stats
            decoded += stats.decode_tokens
            moves += stats.kv_compactions
            widths.append(stats.kv_cells_width)
            holes.append(stats.kv_cells_holes)
            for finished in report.step.finished:
                ended += 1
                slot = self._slots.pop(finished.key)
                if is_closed_loop:
                    self._start(slot)
        took = time.process_time() - began
        return took, decoded, float(np.mean(widths)), sum(holes) / max(sum(widths), 1), moves

    def _start(self, slot: int) -> None:
        draw = self._draw
        is_long = draw.random() < _LONG_ANSWERS
        prompt = int(draw.integers(20, 60) if is_long else draw.integers(200, 800))
        answer = int(draw.integers(400, 900) if is_long else draw.integers(10, 60))
        self._begin(prompt, answer, slot)

    def _begin(self, prompt: int, answer: int, slot: int) -> None:
        self._n += 1
        item = self._item(prompt, answer, slot)
        self._slots[f"bench.{item.request.request_id}"] = slot
        self._engine.start(item)

    def _item(self, prompt: int, answer: int, slot: int) -> worker_pb2.BatchItem:
        from inferflux.v1 import worker_pb2

        item = worker_pb2.BatchItem(slot=slot)
        request = item.request
        request.tenant, request.request_id, request.epoch = "bench", f"r{self._n}", 1
        request.prompt_token_ids.extend(self._draw.integers(5, self._vocabulary - 5, prompt).tolist())
        request.params.max_tokens = answer
        request.params.ignore_eos = True
        return item


def traffic_table(backend: Backend, requests: int, rounds: int) -> Table:
    """A row for each way in each round; the ways of a round have the same requests. 0 of them: a burst."""
    from inferflux.worker.engine.step.core import Engine
    from inferflux.worker.engine.tiers.tiers import Tiers

    table = Table("cached prefixes", "compaction", "round", "CPU s", "decoded", "width", "empty", "moves")
    for has_prefix_cache in (True, False):
        for number in range(rounds):
            for has_compaction in (True, False):
                for seq_id in range(backend.sequences):  # what the last engine left
                    backend.forget(seq_id)
                    backend.forget_prefill(seq_id)
                engine = Engine(
                    backend,
                    worker_id="bench",
                    max_itl_factor=5.0,
                    step_limit_s=0.2,
                    tiers=Tiers.off(),
                    has_prefix_cache=has_prefix_cache,
                    has_compaction=has_compaction,
                )
                traffic = Traffic(engine, backend.vocab.size, number)
                took, decoded, width, empty, moves = traffic.serve(requests) if requests else traffic.burst()
                ways = ["on" if way else "off" for way in (has_prefix_cache, has_compaction)]
                figures = (f"{took:.2f}", str(decoded), f"{width:.0f}", f"{empty:.0%}", str(moves))
                table.add_row(*ways, str(number + 1), *figures)
    return table


def main() -> None:
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.llama.native import Backend

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model-file", type=Path, default=Path("models/inferflux-demo.gguf"))
    parser.add_argument("--cells", type=int, default=16384)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--type", default="f16", help="of keys and values")
    parser.add_argument("--traffic", action="store_true")
    parser.add_argument("--burst", action="store_true")
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    backend = Backend(
        engine_pb2.EngineConfig(
            model_path=str(options.model_file),
            slots=_SLOTS,
            sequences=2 * _SLOTS + 64,
            batch_tokens=2048,
            kv_cells=options.cells,
            kv_type_k=options.type,
            kv_type_v=options.type,
            threads=options.threads,
            flash_attention=True,
        )
    )
    console = Console(width=120)
    if options.traffic or options.burst:
        requests = 0 if options.burst else options.requests
        console.print(traffic_table(backend, requests, options.rounds))
    else:
        console.print(steps_table(backend))


if __name__ == "__main__":
    main()
