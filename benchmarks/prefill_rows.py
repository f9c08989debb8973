"""What a prompt takes by the rows that are computed at a time, in contexts without flash attention.

    python -m benchmarks.prefill_rows [--model-file FILE] [--rows 85 256 512] [--rounds 6]

The same 512 tokens in steps of as many rows as are given, in turn in one process. Prints the medians of
wall and CPU time in milliseconds. Threads wait for each other some hundred times a step, however few rows it
has: on busy cores that is most of a small step.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from inferflux.worker.processes.engine_process import SPIN_COUNT

from .command_line import make_parser, positive
from .stats import median

_TOKENS = 512
_CELLS = 1024


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"), help="GGUF to measure")
    parser.add_argument("--rows", type=positive, nargs="+", default=[85, 256, 512])
    parser.add_argument("--rounds", type=positive, default=6)
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.llama.context import Context
    from inferflux.worker.engine.llama.native import Backend

    config = engine_pb2.EngineConfig(
        model_path=str(options.model_file),
        slots=1,
        kv_cells=_CELLS,
        batch_tokens=_TOKENS,
        prefill_cells=0,
        threads=options.threads,
        flash_attention=True,
    )
    backend = Backend(config)
    contexts = {
        rows: Context(
            backend._model,  # noqa: SLF001 - contexts that no engine has
            cells=_CELLS,
            sequences=1,
            batch_tokens=_TOKENS,
            physical_batch=rows,
            flash_attention=False,
            threads=options.threads,
            vocabulary=backend.vocab.size,
        )
        for rows in options.rows
    }
    tokens = np.full(_TOKENS, 7, np.int32)
    times: dict[int, list[tuple[float, float]]] = {rows: [] for rows in contexts}
    for _ in range(options.rounds):
        for rows, context in contexts.items():
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            for first in range(0, _TOKENS, rows):
                context.decode_tokens(tokens[first : first + rows], seq_id=0, position=first)
            times[rows].append((time.perf_counter() - began_s, time.process_time() - began_cpu_s))
            context.clear()
    table = Table("rows", "wall, ms", "CPU, ms")
    for rows, pairs in times.items():
        wall, cpu = (median(column) * 1000 for column in zip(*pairs, strict=True))
        table.add_row(str(rows), f"{wall:.0f}", f"{cpu:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
