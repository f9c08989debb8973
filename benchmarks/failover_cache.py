"""What long prompts on a worker that is killed cost: how much is computed again, and for how long they wait.

    python -m benchmarks.failover_cache [--model-file FILE] [--prompt-tokens 1000] [--rounds 3]

Two workers of one machine, 8 streams on one of them, kill -9. The streams go on at the other. Five ways:

- `computed`: nothing of them is cached there, and there is no disk tier.
- `left`: there is one. The dead worker's engine puts on disk what it had of them.
- `disk`: the dead worker had also put every prompt on disk as soon as it was computed.
- `shared`: all prompts begin with the same three quarters, which the other worker has in its KV cache.
- `both`: the same, and the disk.

Prints medians: the part of the lost tokens, prompt and answer so far, that is computed again, the longest gap
of any stream after the kill, and when the last one went on.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from inferflux.cli.stack import StackOptions
from inferflux.v1 import inference_pb2

from .command_line import add_json, make_parser, positive, write_json
from .grpc_target import generate_request
from .lab import LabError
from .scheduling.figures import Window, longest_gap_s
from .scheduling.ground import Ground, ground, until
from .scheduling.streams import ends, failures

# Token ids that are ordinary text in the demo and the bench model.
_IDS = range(300, 1800)
_STREAMS = 8
_KILLED_AT = 24
_FOR_EVER_S = 1e9
_LIMIT_S = 240.0
_WAYS = ("computed", "left", "disk", "shared", "both")
_FOUND = "inferflux_retried_found_tokens_total"
_TOKENS = "inferflux_retried_tokens_total"


@dataclass(frozen=True, slots=True)
class Kill:
    """One worker killed.

    Attributes:
        computed_part: of the tokens of the lost streams.
        longest_gap_s: of any stream, after the kill.
        on_again_s: until the last stream had its next token.
    """

    computed_part: float
    longest_gap_s: float
    on_again_s: float


async def kill_once(options: argparse.Namespace, way: str, rng: random.Random) -> Kill:
    """Start a stack, have all streams run on one worker, and kill it."""
    with tempfile.TemporaryDirectory() as folder:
        worker = {"INFERFLUX_WORKER_DISK_PATH": folder} if way in ("left", "disk", "both") else {}
        if way in ("disk", "both"):
            worker["INFERFLUX_WORKER_DISK_PROMPT_TOKENS"] = str(options.prompt_tokens // 2)
        made = StackOptions(
            model=options.model_file,
            workers=2,
            slots=_STREAMS,
            threads=options.threads,
            kv_cells=_STREAMS * (options.prompt_tokens + 2 * options.answer_tokens),
            service_env={"worker": worker},
            restarts=False,
        )
        async with ground(made) as on:
            return await _kill(on, options, way, Path(folder), rng)


async def _kill(on: Ground, options: argparse.Namespace, way: str, folder: Path, rng: random.Random) -> Kill:
    victim, spare = "worker-0", "worker-1"
    n_shared = options.prompt_tokens * 3 // 4 if way in ("shared", "both") else 0
    shared = [rng.choice(_IDS) for _ in range(n_shared)]
    asked = [
        request_of(on, shared + [rng.choice(_IDS) for _ in range(options.prompt_tokens - n_shared)], options)
        for _ in range(_STREAMS)
    ]
    if shared:
        await on.drain(victim)
        await on.caller.ask(generate_request(on.model, shared, 1))
        await on.admin.undrain(victim)
    await on.drain(spare)
    underway = [on.caller.send(request) for request in asked]
    streams = [one.stream for one in underway]
    await until(lambda: all(stream.tokens >= _KILLED_AT or stream.error for stream in streams))
    if way in ("disk", "both"):
        n_files = 1 if shared else _STREAMS
        await until(lambda: len(list(folder.glob("*/*.kv"))) >= n_files)
    await on.admin.undrain(spare)
    at_s = time.perf_counter()
    await on.stack.kill(victim)
    await ends(underway, _LIMIT_S)
    if failed := failures(streams):
        raise LabError(f"a stream failed: {failed[0]}")
    nexts = [next((at for at in stream.arrivals_s if at > at_s), at_s) for stream in streams]
    gauges = await on.gauges(spare)
    if not gauges.get(_TOKENS):
        raise LabError("the streams had ended before the kill: take a larger --answer-tokens")
    found_part = gauges.get(_FOUND, 0.0) / gauges[_TOKENS]
    return Kill(1 - found_part, longest_gap_s(streams, Window(at_s, _FOR_EVER_S)), max(nexts) - at_s)


def request_of(on: Ground, prompt: list[int], options: argparse.Namespace) -> inference_pb2.GenerateRequest:
    return generate_request(on.model, prompt, options.answer_tokens)


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"))
    parser.add_argument("--prompt-tokens", type=positive, default=1000)
    parser.add_argument("--answer-tokens", type=positive, default=256)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=1, help="of each worker")
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=list(_WAYS))
    parser.add_argument("--seed", type=int, default=1)
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    rng = random.Random(options.seed)
    kills: dict[str, list[Kill]] = {way: [] for way in options.ways}
    for _ in range(options.rounds):
        for way in options.ways:  # in turn: a busy minute slows all of them
            kills[way].append(asyncio.run(kill_once(options, way, rng)))
    title = f"{_STREAMS} prompts of {options.prompt_tokens} tokens, {options.rounds} kills each, medians"
    table = Table("way", "computed again", "longest gap, s", "all on again after, s", title=title)
    for way, of in kills.items():
        table.add_row(
            way,
            f"{statistics.median(kill.computed_part for kill in of):.1%}",
            f"{statistics.median(kill.longest_gap_s for kill in of):.2f}",
            f"{statistics.median(kill.on_again_s for kill in of):.2f}",
        )
    Console().print(table)
    figures = {way: [asdict(kill) for kill in of] for way, of in kills.items()}
    write_json(options, figures)


if __name__ == "__main__":
    main()
