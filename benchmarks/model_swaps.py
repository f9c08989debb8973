"""What loading and unloading models costs running streams, and how long requests wait for a model.

    python -m benchmarks.model_swaps [--model-file FILE] [--other models/bench.gguf] [--swaps 10]
    python -m benchmarks.model_swaps --zipf 20 --room 3 [--seconds 300] [--rate 1.0]

First: streams on a model, one after the other in each of 8 places, while another model is loaded,
asked once, and unloaded, again and again. Prints how many streams failed, the longest time between two
tokens of a stream ÷ the median without loads, and how long the other model's first token took: from the
request that has it loaded. A prompt lengthens the steps that it is in, on purpose; so the longest time in
which no request waited for its first token is printed as well: that is what loads alone cost.

With `--zipf`: that many models are known, with room for `--room` of them beside the first one. Requests
of 16 tokens come at random moments, `--rate` a second, for models by Zipf's law. Prints how many failed,
and how long first tokens took.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from inferflux.cli.stack import StackOptions
from inferflux.v1 import model_pb2

from .command_line import add_json, make_parser, positive, show_figures
from .grpc_target import generate_request
from .lab import BENCH_MODEL, DEMO_MODEL
from .scheduling.figures import Window, longest_gap_s, median_gap_s
from .scheduling.ground import Ground, ground, until_so
from .scheduling.streams import Stream
from .stats import median, percentile

_PLACES = 8
_CALM_S = 8.0
_TOKENS = 256
_ZIPF_TOKENS = 16
_IDS = range(300, 1800)


async def until_state(on: Ground, name: str, state: model_pb2.ModelState.ValueType) -> None:
    """Return once a model is in a state."""

    async def is_so() -> bool:
        return any(m.card.name == name and m.state == state for m in await on.admin.models())

    await until_so(is_so)


async def keep_busy(on: Ground, streams: list[Stream], chance: random.Random) -> None:
    """One request after the other, for ever."""
    while True:
        prompt = [chance.choice(_IDS) for _ in range(32)]
        underway = on.caller.send(generate_request(on.model, prompt, _TOKENS))
        streams.append(underway.stream)
        await underway.task


def longest_gap_beside_no_prompt_s(streams: Sequence[Stream], window: Window) -> float:
    """The longest time between two tokens of a stream that lies in the window, while no request of the same
    model waited for its first token."""
    waits = [(s.sent_s, s.arrivals_s[0]) for s in streams if s.arrivals_s]
    return max(
        later - earlier
        for stream in streams
        for earlier, later in itertools.pairwise(stream.arrivals_s)
        if window.has(earlier) and not any(began < later and first > earlier for began, first in waits)
    )


async def swaps(options: argparse.Namespace) -> dict[str, float]:
    """Streams beside loads."""
    made = StackOptions(model=options.model_file, slots=_PLACES, threads=options.threads)
    chance = random.Random(options.seed)
    streams: list[Stream] = []
    others: list[Stream] = []
    cold_s: list[float] = []
    async with ground(made) as on:
        name = options.other.name.removesuffix(".gguf")
        load = model_pb2.LoadModelRequest(path=str(options.other.absolute()))
        unload = model_pb2.UnloadModelRequest(name=name)
        await on.admin.load_model(load)
        await until_state(on, name, model_pb2.MODEL_STATE_READY)
        await on.admin.unload_model(unload)
        await until_state(on, name, model_pb2.MODEL_STATE_REGISTERED)
        busy = [asyncio.create_task(keep_busy(on, streams, chance)) for _ in range(_PLACES)]
        await asyncio.sleep(1.0)
        began_s = time.perf_counter()
        await asyncio.sleep(_CALM_S)
        calm = Window(began_s, time.perf_counter())
        with Progress(console=Console(stderr=True)) as progress:
            for _ in progress.track(range(options.swaps), description="loads"):
                asked = on.caller.send(generate_request(name, [chance.choice(_IDS) for _ in range(32)], 4))
                await asked.task
                others.append(asked.stream)
                cold_s.append(asked.stream.ttft_s)
                await on.admin.unload_model(unload)
                await until_state(on, name, model_pb2.MODEL_STATE_REGISTERED)
        swapping = Window(calm.end_s, time.perf_counter())
        failed = sum(stream.has_failed for stream in streams + others)
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
    typical = median_gap_s(streams, calm)
    return {
        "failed": failed,
        "streams": len(streams) + len(others),
        "median_gap_ms": typical * 1000,
        "longest_gap_calm_ratio": longest_gap_s(streams, calm) / typical,
        "longest_gap_ratio": longest_gap_s(streams, swapping) / typical,
        "longest_gap_calm_without_prompts_ratio": longest_gap_beside_no_prompt_s(streams, calm) / typical,
        "longest_gap_without_prompts_ratio": longest_gap_beside_no_prompt_s(streams, swapping) / typical,
        "cold_first_token_s": median(cold_s),
    }


async def zipf(options: argparse.Namespace) -> dict[str, float]:
    """More models than have room."""
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        names = [f"m{i}" for i in range(options.zipf)]
        for name in names:
            (Path(folder) / f"{name}.gguf").symlink_to(DEMO_MODEL)
        config = Path(folder) / "models.yaml"
        config.write_text("models:\n" + "".join(f"  - path: {name}.gguf\n" for name in names))
        worker = {
            "INFERFLUX_CONFIG": str(config),
            "INFERFLUX_MODELS_MAX": str(options.room + 1),
            "INFERFLUX_WORKER_KV_CELLS": "4096",
        }
        made = StackOptions(model=DEMO_MODEL, slots=4, threads=1, service_env={"worker": worker})
        async with ground(made) as on:
            weights = [1 / (i + 1) for i in range(options.zipf)]
            sent = []
            end_s = time.perf_counter() + options.seconds
            with Progress(console=Console(stderr=True)) as progress:
                bar = progress.add_task("requests", total=options.seconds)
                while (left_s := end_s - time.perf_counter()) > 0:
                    progress.update(bar, completed=options.seconds - left_s)
                    (name,) = chance.choices(names, weights)
                    prompt = [chance.choice(_IDS) for _ in range(16)]
                    sent.append(on.caller.send(generate_request(name, prompt, _ZIPF_TOKENS)))
                    await asyncio.sleep(chance.expovariate(options.rate))
            await asyncio.gather(*(underway.task for underway in sent))
    streams = [underway.stream for underway in sent]
    waits = [stream.ttft_s for stream in streams if stream.arrivals_s]
    return {
        "requests": len(streams),
        "failed": sum(stream.has_failed for stream in streams),
        "ttft_p50_s": median(waits),
        "ttft_p99_s": percentile(sorted(waits), 0.99),
        "ttft_longest_s": max(waits),
    }


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=DEMO_MODEL, help="the model of the streams")
    parser.add_argument("--other", type=Path, default=BENCH_MODEL, help="the model that comes and goes")
    parser.add_argument("--swaps", type=positive, default=10)
    parser.add_argument("--threads", type=positive, default=1, help="of each engine")
    parser.add_argument("--zipf", type=positive, metavar="MODELS")
    parser.add_argument("--room", type=positive, default=3)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=1)
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    figures = asyncio.run(zipf(options) if options.zipf else swaps(options))
    show_figures(options, figures)


if __name__ == "__main__":
    main()
