"""How a CPU should compute prompts: the same requests, in turn, on engines that differ in nothing else.

    python -m benchmarks.prefill_trial --only c8 c16 --rounds 3 --json prefill.json
    python -m benchmarks.prefill_trial --ablation

The engines run in this process, without a service around them. Each round goes through all of them. The rows:

c8, c16   8 or 16 requests at a time, prompts of 64 to 192 tokens, answers of 32 to 96: tokens per second
long      a prompt of 4,000 tokens comes while 4 sequences decode: their longest gap against their median
          before, and its time to first token against that alone plus what their tokens took
cold      a prompt of 3,000 tokens alone: its time to first token
share     a sequence takes over 3,000 tokens of another one: the time of `seq_cp` and its next token, less
          that of a token without it

With --ablation the engines are as a worker's, each without one of what bends the step budget.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from inferflux.worker.processes.engine_process import SPIN_COUNT

from .command_line import add_json, make_parser, positive, write_json
from .engine_loop import EngineLoop, item_of
from .long_prompt import figures
from .prompts import Prompts, middle_of
from .stats import median
from .trace import Trace, totals

if TYPE_CHECKING:
    from inferflux.worker.engine.llama.native import Backend

SLOTS = 16
LONG_TOKENS = 4000
COLD_TOKENS = 3000
_DECODES = 4
_SETTLED_STEPS = 32
_KV_CELLS = 16384
# Room for the long prompt, its answer, and what each of the others generates meanwhile.
_CELLS_OF_A_SEQUENCE = 4352

ENGINES = (
    "mixed",
    "mixed, no flash attention",
    "a cache per sequence",
    "a cache per sequence, no flash attention",
    "prefill context",
)

Figures = dict[str, float]


def backends(model: Path, threads: int, names: Sequence[str]) -> dict[str, Backend]:
    """The engines to compare, each loaded."""
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.llama.native import Backend

    def config(
        *, kv_cells: int = _KV_CELLS, flash_attention: bool = True, **more: int
    ) -> engine_pb2.EngineConfig:
        return engine_pb2.EngineConfig(
            model_path=str(model),
            slots=SLOTS,
            sequences=SLOTS,
            kv_cells=kv_cells,
            context_length=_CELLS_OF_A_SEQUENCE,
            batch_tokens=2048,
            threads=threads,
            flash_attention=flash_attention,
            **more,  # type: ignore[arg-type]
        )

    separate_cells = (SLOTS + 1) * _CELLS_OF_A_SEQUENCE
    configs = (
        (config(prefill_cells=0), True),
        (config(flash_attention=False), True),
        (config(kv_cells=separate_cells, prefill_cells=0), False),
        (config(kv_cells=separate_cells, flash_attention=False), False),
        (config(prefill_cells=_CELLS_OF_A_SEQUENCE), True),
    )
    return {
        name: Backend(of_name, is_unified=is_unified)
        for name, (of_name, is_unified) in zip(ENGINES, configs, strict=True)
        if name in names
    }


@contextmanager
def without(constant: str, backend: Backend) -> Iterator[None]:
    """The step budget without one of its constants."""
    from inferflux.worker.engine.plan import budget

    patches: dict[str, list[Any]] = {
        "": [],
        "ITL floor": [mock.patch.object(budget, "ITL_FLOOR_S", 0.0)],
        "queue pressure": [mock.patch.object(budget, "DECODES_PER_PREFILL", 0)],
        "less for long prompts": [mock.patch.object(budget, "LONG_PROMPT_PART", 1.0)],
        "one thread for small steps": [
            mock.patch.object(backend, "_find_single_thread_tokens", return_value=0)
        ],
        "long steps": [mock.patch.object(budget.StepBudget, "in_long_step", return_value=0)],
    }
    with ExitStack() as stack:
        for patch in patches[constant]:
            stack.enter_context(patch)
        yield


CONSTANTS = (
    "",
    "ITL floor",
    "queue pressure",
    "less for long prompts",
    "one thread for small steps",
    "long steps",
)


def share(backend: Backend) -> Figures:
    """What it costs a sequence to begin with the tokens of another."""
    from inferflux.common.llama.native import llama

    context = backend._main  # noqa: SLF001 - the cost is of llama.cpp's calls
    memory = context._memory  # noqa: SLF001
    tokens = np.full(COLD_TOKENS, 7, np.int32)
    for first in range(0, COLD_TOKENS, 500):
        context.decode_tokens(tokens[first : first + 500], seq_id=0, position=first)
    usual_s, shared_s = [], []
    for seq_id in range(1, 6):
        began = time.perf_counter()
        context.decode_tokens(tokens[:1], seq_id=0, position=COLD_TOKENS + seq_id - 1)
        usual_s.append(time.perf_counter() - began)
        began = time.perf_counter()
        llama.llama_memory_seq_cp(memory, 0, seq_id, -1, -1)
        context.decode_tokens(tokens[:1], seq_id=seq_id, position=COLD_TOKENS + seq_id)
        shared_s.append(time.perf_counter() - began)
    context.clear()
    return {"share_ms": (median(shared_s) - median(usual_s)) * 1000}


def closed_loop(backend: Backend, concurrency: int, requests: int) -> Figures:
    """Requests at a time; lengths vary, so that they do not begin and end together."""
    rng = np.random.default_rng(1)
    prompts = rng.integers(64, 193, requests).tolist()
    answers = rng.integers(32, 97, requests).tolist()
    ids = middle_of(backend.vocab.size)
    waiting = [item_of(i, Prompts(prompts[i], ids)[i], answers[i]) for i in reversed(range(requests))]
    loop, traces = EngineLoop(backend, concurrency), list[Trace]()
    while waiting or not loop.is_idle:
        while waiting and loop.n_free:
            traces.append(loop.start(waiting.pop()))
        loop.step()
    result = totals(traces)
    return {
        "tokens_per_s": result["tokens_per_s"],
        "ttft_p50_ms": result["ttft_ms"]["p50"],
        "itl_p50_ms": result["itl_ms"]["p50"],
        "itl_p99_ms": result["itl_ms"]["p99"],
    }


def long_among_decodes(backend: Backend) -> Figures:
    """A long prompt among sequences that decode."""
    ids = middle_of(backend.vocab.size)
    loop = EngineLoop(backend, SLOTS)
    alone = _first_token(loop, item_of(0, Prompts(LONG_TOKENS, ids)[0], 2))
    decodes = [loop.start(item_of(1 + i, Prompts(128, ids)[1 + i], 2000)) for i in range(_DECODES)]
    while not all(trace.arrivals_s for trace in decodes):
        loop.step()
    settled_s = time.perf_counter()
    for _ in range(_SETTLED_STEPS):
        loop.step()
    among = _first_token(loop, item_of(9, Prompts(LONG_TOKENS, ids)[9], 2))
    for _ in range(_SETTLED_STEPS):
        loop.step()
    loop.cancel_all()
    arrivals = [trace.arrivals_s for trace in decodes]
    found = figures(arrivals, settled_s=settled_s, long=among, ttft_alone_s=alone.ttft_s)
    return {
        "longest_over_median": found.longest_over_median,
        "ttft_ratio": found.ttft_ratio,
        "ttft_ms": found.ttft_ms,
        "ttft_alone_ms": found.ttft_alone_ms,
        "undisturbed_gap_ms": found.undisturbed_gap_ms,
        "longest_gap_ms": found.longest_gap_ms,
    }


def cold(backend: Backend) -> Figures:
    """A long prompt alone."""
    prompt = Prompts(COLD_TOKENS, middle_of(backend.vocab.size))[0]
    loop = EngineLoop(backend, SLOTS)
    trace = _first_token(loop, item_of(0, prompt, 2))
    loop.cancel_all()
    return {"ttft_ms": trace.ttft_s * 1000}


def _first_token(loop: EngineLoop, item: object) -> Trace:
    trace = loop.start(item)  # type: ignore[arg-type]
    while not trace.arrivals_s:
        loop.step()
    return trace


def rows(waves: int) -> dict[str, Callable[[Backend], Figures]]:
    """What is measured, by name."""
    return {
        "c8": lambda backend: closed_loop(backend, 8, 8 * waves),
        "c16": lambda backend: closed_loop(backend, 16, 16 * waves),
        "long": long_among_decodes,
        "cold": cold,
        "share": share,
    }


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"), help="GGUF to measure")
    parser.add_argument("--only", nargs="+", choices=sorted(rows(1)), default=list(rows(1)))
    parser.add_argument("--without", nargs="+", default=[], metavar="ENGINE", help="leave these out")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--waves", type=positive, default=4, help="requests of a run, times the concurrency")
    parser.add_argument("--threads", type=int, default=0, help="0: every core this process may use")
    parser.add_argument("--spin", default=SPIN_COUNT, help="GOMP_SPINCOUNT")
    parser.add_argument("--ablation", action="store_true", help="a worker without each of its constants")
    add_json(parser, "every figure")
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ["GOMP_SPINCOUNT"] = options.spin
    names = ENGINES[-1:] if options.ablation else ENGINES
    loaded = backends(options.model_file, options.threads, names)
    engines = [(name, "", backend) for name, backend in loaded.items() if name not in options.without]
    if options.ablation:
        (backend,) = loaded.values()
        engines = [(f"without {name}" if name else "as it is", name, backend) for name in CONSTANTS]
    for backend in loaded.values():
        closed_loop(backend, 4, 8)
    found: dict[str, dict[str, list[Figures]]] = {}
    for row in options.only:
        measure = rows(options.waves)[row]
        found[row] = {name: [] for name, _, _ in engines}
        for _ in track(range(options.rounds), description=row, console=Console(stderr=True)):
            for name, constant, backend in engines:
                with without(constant, backend):
                    found[row][name].append(measure(backend))
                Console(stderr=True).print(row, name, found[row][name][-1], style="dim")
        Console().print(table_of(row, found[row]))
        write_json(options, found)


def table_of(row: str, found: dict[str, list[Figures]]) -> Table:
    """The medians of a row, an engine a line."""
    first = next(iter(found.values()))[0]
    table = Table("engine", *first, title=row)
    for name, runs in found.items():
        table.add_row(name, *(f"{median(run[key] for run in runs):.2f}" for key in first))
    return table


if __name__ == "__main__":
    main()
