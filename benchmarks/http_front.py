"""The HTTP front beside gRPC, and beside llama.cpp's own server over the same HTTP client.

    make peers && python -m benchmarks.http_front [--quick] [--model FILE] [--json FILE]

One stack serves. Each load goes to gRPC, to HTTP and to llama.cpp's server in turn: 16 streams at a time,
then one after the other. Told are the ratios of tokens/s, the gateway's CPU time per request over HTTP ÷
gRPC's, and how much later the first token comes over HTTP at idle. Each is the median over the rounds;
disturbed rounds are made again (`calm`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from rich.console import Console
from rich.table import Table

from benchmarks.calm import Run
from benchmarks.command_line import add_json, make_parser, write_json
from benchmarks.cpu_cost import CPU_MS, with_cpu
from benchmarks.grpc_target import GrpcTarget
from benchmarks.lab import DEMO_MODEL, FULL, QUICK, Lab, LabError
from benchmarks.pairs import Result, Word, in_turn, load_of, ratios
from benchmarks.prompts import middle_of
from benchmarks.server_rows import find_peer, serve_peer
from benchmarks.stats import median
from inferflux.cli.stack import Stack

_CONCURRENT = 16
# The demo model's answers are short: more of them, so that a run is not over before it has begun.
_WAVES = 16
_IDLE = ("--concurrency", 1, "--prompt-tokens", 32, "--max-tokens", 2)
_IDLE_WARMUP = 8


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="default: the demo model")
    parser.add_argument("--quick", action="store_true", help="one round of few requests")
    parser.add_argument("--no-peer", action="store_true", help="without llama.cpp's own server")
    add_json(parser, "every figure")
    return parser.parse_args(arguments)


class Fronts:
    """Runs of serve.py on the two fronts of one stack."""

    def __init__(self, lab: Lab, stack: Stack, tokens: tuple[int, int]) -> None:
        self._lab = lab
        self._stack = stack
        self.token_range: tuple[Word, ...] = ("--token-range", f"{tokens[0]}:{tokens[1]}")

    def grpc(self, *words: Word, warmup: int) -> Run:
        return self._run("--url", self._stack.endpoint, "--client", "lean", *words, warmup=warmup)

    def http(self, *words: Word, warmup: int) -> Run:
        return self._run("--url", self._stack.http_url, "--target", "openai-sse", *words, warmup=warmup)

    def _run(self, *words: Word, warmup: int) -> Run:
        stack = self._stack
        all_words = ("--model", stack.model_name, *self.token_range, *words, "--warmup", warmup)
        run = partial(self._lab.serve, *all_words, api_key=stack.api_key)
        pids = {name: process.pid for name, process in stack.processes.items()}
        return with_cpu(run, pids, also_sent=warmup)


async def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Every figure, and the runs it comes from."""
    lab = Lab(QUICK if options.quick else FULL, console)
    model = options.model.resolve()
    async with lab.stack(model) as stack:
        fronts = Fronts(lab, stack, await _token_range(stack))
        words = load_of(_CONCURRENT, 2 if options.quick else _WAVES)
        runs = [fronts.grpc(*words, warmup=_CONCURRENT), fronts.http(*words, warmup=_CONCURRENT)]
        if not options.no_peer:
            peer = await find_peer(lab)
            all_words = (*words, *fronts.token_range, "--warmup", _CONCURRENT)
            runs.append(partial(serve_peer, lab, peer, model, "passive", *all_words))
        by_grpc, by_http, *by_peer = await in_turn(lab, *runs)
        idle = (*_IDLE, "--requests", lab.plan.single_requests)
        idle_runs = (fronts.grpc(*idle, warmup=_IDLE_WARMUP), fronts.http(*idle, warmup=_IDLE_WARMUP))
        idle_grpc, idle_http = await in_turn(lab, *idle_runs)
    others = [("llama.cpp's server", runs) for runs in by_peer]
    figures = {
        f"tokens/s over HTTP ÷ {name}, {_CONCURRENT} concurrent": ratios(by_http, runs, _tokens_per_s)
        for name, runs in [("gRPC", by_grpc), *others]
    }
    figures["gateway's CPU time per request, HTTP ÷ gRPC"] = ratios(by_http, by_grpc, _gateway_cpu_ms)
    pairs = zip(idle_http, idle_grpc, strict=True)
    figures["time to first token at idle, HTTP minus gRPC, p50, ms"] = [
        _ttft_ms(http) - _ttft_ms(grpc) for http, grpc in pairs
    ]
    raw = {"grpc": by_grpc, "http": by_http, "llama_server": by_peer}
    raw |= {"idle_grpc": idle_grpc, "idle_http": idle_http}
    return {"figures": {k: {"median": median(v), "each": v} for k, v in figures.items()}, "runs": raw}


async def _token_range(stack: Stack) -> tuple[int, int]:
    target = GrpcTarget(stack.endpoint, model=stack.model_name, api_key=stack.api_key)
    try:
        return middle_of(await target.vocabulary_size())
    finally:
        await target.close()


def _tokens_per_s(run: Result) -> float:
    return float(run["tokens_per_s"])


def _gateway_cpu_ms(run: Result) -> float:
    return float(run[CPU_MS]["gateway"])


def _ttft_ms(run: Result) -> float:
    return float(run["ttft_ms"]["p50"])


def table_of(figures: dict[str, Any]) -> Table:
    table = Table("what", "median", "each round")
    for name, figure in figures.items():
        table.add_row(name, f"{figure['median']:.3f}", ", ".join(f"{one:.3f}" for one in figure["each"]))
    return table


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options, console = parse(arguments), Console()
    try:
        result = asyncio.run(measure(options, console))
    except LabError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    console.print(table_of(result["figures"]))
    write_json(options, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
