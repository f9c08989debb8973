"""Time to the first token of tenants that each begin with a system prompt of their own.

    python -m benchmarks.prefix_tenants [--model-file FILE] [--cells 16384] [--host-bytes N] [--disk-bytes N]

Tenants ask in turn, one request at a time. The first request of each is cold: its prompt is computed. In the
rounds after it the same beginning comes with another question, so that all but the question may be found. The
same requests go to the server of llama.cpp, with flash attention and without, unless --ours-alone. It keeps
prompts as it does by default.

`--cells` says how much both keep in their KV caches. Prints medians in milliseconds, and warm over cold.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from inferflux.cli.stack import Stack, StackOptions

from . import peers
from .command_line import add_json, make_parser, positive, write_json
from .grpc_target import GrpcTarget
from .load import Target
from .peer_build import built_server
from .sse_target import SseTarget
from .trace import Trace

# Token ids that are ordinary text in the demo and the bench model.
_IDS = range(300, 1800)
_QUESTION_TOKENS = 24
_ANSWER_TOKENS = 2
_SLOTS = 8
_OURS = "InferFlux"

Times = list[list[float]]
"""Milliseconds to the first token, by round and tenant; the first round is cold."""


async def ask(target: Target, prompt: list[int]) -> float:
    """Milliseconds to the first token.

    Raises:
        RuntimeError: there was none.
    """
    trace = Trace(time.perf_counter())
    await target.generate(prompt, _ANSWER_TOKENS, trace)
    if trace.error or not trace.arrivals_s:
        raise RuntimeError(trace.error or "no token came")
    return (trace.arrivals_s[0] - trace.sent_s) * 1000


async def ask_in_turn(target: Target, options: argparse.Namespace) -> Times:
    rng = random.Random(options.seed)

    def tokens(n: int) -> list[int]:
        return [rng.choice(_IDS) for _ in range(n)]

    await ask(target, tokens(64))  # the first request of a process takes longer
    prefixes = [tokens(options.prefix_tokens) for _ in range(options.tenants)]
    return [
        [await ask(target, prefix + tokens(_QUESTION_TOKENS)) for prefix in prefixes]
        for _ in range(1 + options.rounds)
    ]


async def ours(options: argparse.Namespace) -> Times:
    worker = {
        "INFERFLUX_WORKER_HOST_BYTES": str(options.host_bytes),
        "INFERFLUX_WORKER_DISK_BYTES": str(options.disk_bytes),
    }
    stack_options = StackOptions(
        model=options.model_file,
        slots=_SLOTS,
        kv_cells=options.cells,
        service_env={"worker": worker},
        has_disk_tier=options.disk_bytes > 0,
    )
    async with Stack(stack_options) as stack:
        target = GrpcTarget(stack.endpoint, model=stack.model_name, api_key=stack.api_key)
        return await ask_in_turn(target, options)


async def llama_servers(options: argparse.Namespace, *, has_flash_attention: bool) -> Times:
    cores = len(os.sched_getaffinity(0))
    async with AsyncExitStack() as exits:
        url = await exits.enter_async_context(
            peers.llama_server(
                peers.find(built_server()),
                options.model_file,
                threads=cores,
                slots=_SLOTS,
                cells=options.cells,
                omp="passive",
                keeps_prompts=True,
                has_flash_attention=has_flash_attention,
            )
        )
        target = SseTarget(url, model=options.model_file.stem, api_key="", keeps_prompts=True)
        return await ask_in_turn(target, options)


def show(found: dict[str, Times]) -> Table:
    table = Table(
        "", "cold, ms", "warm, ms", "warm ÷ cold", "our cold ÷ its", title="time to the first token, medians"
    )
    ours_cold = statistics.median(found[_OURS][0])
    for name, (first, *later) in found.items():
        cold, warm = statistics.median(first), statistics.median(ms for each in later for ms in each)
        table.add_row(name, f"{cold:.1f}", f"{warm:.1f}", f"{warm / cold:.3f}", f"{ours_cold / cold:.3f}")
    return table


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/inferflux-demo.gguf"))
    parser.add_argument("--tenants", type=positive, default=12)
    parser.add_argument("--prefix-tokens", type=positive, default=1000)
    parser.add_argument("--rounds", type=positive, default=3, help="warm ones")
    parser.add_argument("--cells", type=positive, default=16384, help="of the KV cache")
    parser.add_argument("--host-bytes", type=int, default=2 << 30, help="of the host tier")
    parser.add_argument("--disk-bytes", type=int, default=0, help="of the disk tier")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ours-alone", action="store_true")
    add_json(parser, "all times")
    return parser.parse_args()


def main() -> None:
    options = parse()
    found = {_OURS: asyncio.run(ours(options))}
    if not options.ours_alone:
        try:
            for word, is_on in (("with", True), ("without", False)):
                name = f"llama.cpp's server {word} flash attention"
                found[name] = asyncio.run(llama_servers(options, has_flash_attention=is_on))
        except peers.PeerError as error:
            sys.exit(str(error))
    Console().print(show(found))
    write_json(options, found)


if __name__ == "__main__":
    main()
