"""The limit a server is held against: the same prompts through a bare llama_decode loop in one process.

    python -m benchmarks.engine --concurrency 8 --requests 64

Takes what serve.py takes, as far as it makes sense without a server, and gives the same figures.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.load.command_line import add_json, make_parser, write_json
from benchmarks.load.prompts import Prompts, middle_of
from benchmarks.load.trace import totals
from benchmarks.rows.lab import BENCH_MODEL
from benchmarks.rows.show import result_table


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=BENCH_MODEL, help="default: SmolLM2")
    parser.add_argument("--concurrency", type=int, default=8, help="sequences at a time")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slots", type=int, default=16, help="sequences the context has room for")
    parser.add_argument("--threads", type=int, default=0, help="0: every core this process may use")
    parser.add_argument("--pin", type=int, help="run on this core alone")
    parser.add_argument(
        "--omp",
        choices=("passive", "active", "default"),
        default="passive",
        help="how llama.cpp's threads wait for each other: asleep, spinning, or first one, then the other",
    )
    add_json(parser)
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Load the model and run the loop.

    Raises:
        BareLoopError: llama.cpp refused.
    """
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from benchmarks.load.bare_loop import BareLoop

    loop = BareLoop(options.model_file, slots=options.slots, threads=options.threads)
    loop.warm_up()
    prompts = Prompts(options.prompt_tokens, middle_of(loop.vocabulary_size), options.seed)
    traces = loop.run(
        prompts,
        requests=options.requests,
        max_tokens=options.max_tokens,
        concurrency=options.concurrency,
    )
    names = ("concurrency", "prompt_tokens", "max_tokens", "seed", "threads", "pin", "omp")
    asked = {name: getattr(options, name) for name in names}
    return {"target": "bare-loop", "model": options.model_file.stem, **asked, **totals(traces)}


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse(arguments)
    if options.pin is not None:
        os.sched_setaffinity(0, {options.pin})
    if options.omp == "default":
        os.environ.pop("OMP_WAIT_POLICY", None)
    else:
        os.environ["OMP_WAIT_POLICY"] = options.omp
    try:
        result = measure(options)
    except Exception as error:  # the process's edge: llama.cpp's own kinds cannot be imported yet
        if type(error).__name__ not in ("BareLoopError", "ValueError"):
            raise
        Console(stderr=True).print(str(error), style="red", markup=False)
        return 1
    Console().print(result_table(result))
    write_json(options, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
