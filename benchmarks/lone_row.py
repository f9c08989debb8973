"""What a second row costs a step that has one alone.

    python -m benchmarks.lone_row [--model-file FILE] [--threads N]

From an attention width of 512 cells on llama.cpp divides one row alone by cells, a part for each thread.
The last bits of its logits then depend on which cells a sequence has. Two rows are not divided. Prints the
median milliseconds of a step with one row and with two, in turn, at growing depth.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from inferflux.worker.processes.engine_process import SPIN_COUNT

from .command_line import make_parser
from .stats import median
from .step_cost import sequence

DEPTHS = (100, 600, 1500, 3000)
_FILL_TOKENS = 512
_KV_CELLS = 4096
_ROUNDS = 60
_WARMUP_ROUNDS = 5


def main() -> None:
    """Measure, and print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"), help="GGUF to measure")
    parser.add_argument("--threads", type=int, default=0, help="0: every core this process may use")
    options = parser.parse_args()
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.llama.native import Backend
    from inferflux.worker.engine.plan.planner import ScheduledTokens, StepPlan

    backend = Backend(
        engine_pb2.EngineConfig(
            model_path=str(options.model_file),
            slots=4,
            kv_cells=_KV_CELLS,
            batch_tokens=_FILL_TOKENS,
            threads=options.threads,
            flash_attention=True,
        )
    )

    def step_s(parts: list[tuple[int, int, int]]) -> float:
        scheduled = [ScheduledTokens(sequence(*part, 0), part[1], n_logits=1) for part in parts]
        began = time.perf_counter()
        backend.decode(StepPlan(decoding=scheduled, prefilling=[], in_prefill_context=False))
        return time.perf_counter() - began

    table = Table(title=f"milliseconds of a step, {options.model_file.name}")
    for heading in ("depth", "one row", "two rows", "two ÷ one"):
        table.add_column(heading, justify="right")
    position = 0
    for depth in track(DEPTHS, description="depth", console=Console(stderr=True)):
        while position < depth:
            tokens = min(_FILL_TOKENS, depth - position)
            step_s([(0, tokens, position)])
            position += tokens
        alone, beside = [], []
        for _ in range(_WARMUP_ROUNDS + _ROUNDS):
            alone.append(step_s([(0, 1, position)]))
            backend.forget(0, position)
            beside.append(step_s([(0, 1, position), (1, 1, 0)]))
            backend.forget(0, position)
            backend.forget(1)
        one, two = (median(times[_WARMUP_ROUNDS:]) * 1000 for times in (alone, beside))
        table.add_row(str(depth), f"{one:.2f}", f"{two:.2f}", f"{two / one:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
