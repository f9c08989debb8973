"""Memory that models of one worker take together, with their host tiers full, over what they may take.

    python -m benchmarks.model_memory [--models 8] [--bytes 2GiB] [--model-file FILE] [--json FILE]

One worker process loads copies of a model file, which share no page. Prompts that were not sent before fill
their KV caches, and what leaves these goes to host memory. The private memory of the worker process and all
its children is read meanwhile, and their part of what they share (Pss, Linux). Prints the most that it was
over `INFERFLUX_MODELS_BYTES`, and what the host tiers held at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
from pydantic import ByteSize, TypeAdapter
from rich.console import Console

from inferflux.cli.stack import StackOptions
from inferflux.v1 import model_pb2

from .load.command_line import add_json, make_parser, positive, write_json
from .load.grpc_target import generate_request
from .rows.lab import DEMO_MODEL, LabError
from .scheduling.ground import Ground, ground, until_so

_LOOK_EVERY_S = 0.25
_AT_ONCE = 4
_LOAD_LIMIT_S = 300.0
_SETTLE_S = 2.0
_MIB = 1 << 20


def pss_bytes(pid: int) -> int:
    """Memory of a process and of all its children: its own, and its part of what it shares."""
    found = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(OSError):
                rolled_up = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                line = next(line for line in rolled_up.splitlines() if line.startswith("Pss:"))
                found += int(line.split()[1]) << 10
    return found


class Watch:
    """Looks at the memory of a process again and again; keeps the most that it was."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.most = 0

    def look(self) -> int:
        now = pss_bytes(self._pid)
        self.most = max(self.most, now)
        return now

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(_LOOK_EVERY_S)


@contextlib.contextmanager
def copies(file: Path, models: int) -> Iterator[list[Path]]:
    """Copies of a file that share no page."""
    with tempfile.TemporaryDirectory() as folder:
        made = [Path(folder) / f"m{number}.gguf" for number in range(models)]
        for path in made:
            shutil.copyfile(file, path)
        yield made


async def fill(on: Ground, names: list[str], options: argparse.Namespace) -> None:
    """Send each model as many prompts as were asked for.

    Raises:
        LabError: a request failed.
    """
    left = asyncio.Semaphore(_AT_ONCE)

    async def ask(name: str, number: int) -> None:
        async with left:
            request = on.request(prompt_tokens=options.prompt_tokens, max_tokens=1)
            stream = await on.caller.ask(generate_request(name, list(request.token_ids.ids), 1))
            if stream.error:
                raise LabError(f"{name}, prompt {number}: {stream.error}")

    async with asyncio.TaskGroup() as group:
        for number in range(options.prompts):
            for name in names:
                group.create_task(ask(name, number))


async def until_loaded(on: Ground) -> None:
    """Return when all models are.

    Raises:
        LabError: one cannot be.
    """

    async def are_ready() -> bool:
        models = await on.admin.models()
        for model in models:
            if model.state == model_pb2.MODEL_STATE_FAILED:
                raise LabError(f"{model.card.name}: {model.reason}")
        return all(model.state == model_pb2.MODEL_STATE_READY for model in models)

    await until_so(are_ready, patience_s=_LOAD_LIMIT_S)


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """Return the figures of one worker."""
    with copies(options.model_file, options.models) as files, tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "models.yaml"
        others = "".join(f"  - {{path: {path}, pinned: true}}\n" for path in files[1:])
        config.write_text(f"models:\n{others}" if others else "models: []\n")
        worker = {
            "INFERFLUX_CONFIG": str(config),
            "INFERFLUX_MODELS_BYTES": str(options.bytes),
            "INFERFLUX_MODELS_MAX": str(options.models),
            "INFERFLUX_WORKER_KV_CELLS": str(options.cells),
            "INFERFLUX_WORKER_DETERMINISTIC": str(options.deterministic).lower(),
        }
        made = StackOptions(
            model=files[0],
            slots=_AT_ONCE,
            threads=1,
            has_disk_tier=options.disk,
            service_env={"worker": worker},
        )
        async with ground(made) as on:
            await until_loaded(on)
            watch = Watch(on.stack.processes["worker-0"].pid)
            looking = asyncio.create_task(watch.run())
            loaded = watch.look()
            await fill(on, [path.stem for path in files], options)
            await asyncio.sleep(_SETTLE_S)
            looking.cancel()
            full = watch.look()
            workers = (await on.admin.whole_status()).scheduler.workers
            needs = sum(place.needs_bytes for model in await on.admin.models() for place in model.places)
    tiers = sum(each.status.host_tier.bytes for each in workers)
    return {
        "most_over_allowed": watch.most / options.bytes,
        "allowed_mib": options.bytes // _MIB,
        "most_mib": watch.most // _MIB,
        "needs_mib": needs // _MIB,
        "loaded_mib": loaded // _MIB,
        "full_mib": full // _MIB,
        "host_tiers_mib": tiers // _MIB,
    }


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    amount = TypeAdapter(ByteSize)
    parser.add_argument("--model-file", type=Path, default=DEMO_MODEL)
    parser.add_argument("--models", type=positive, default=8)
    parser.add_argument(
        "--bytes", type=amount.validate_python, default=2 << 30, help="INFERFLUX_MODELS_BYTES"
    )
    parser.add_argument("--cells", type=positive, default=4096, help="of each KV cache")
    parser.add_argument("--prompts", type=positive, default=100, help="to each model")
    parser.add_argument("--prompt-tokens", type=positive, default=1000)
    parser.add_argument(
        "--deterministic", action="store_true", help="models answer so unless asked otherwise"
    )
    parser.add_argument("--disk", action="store_true", help="with a disk tier")
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    figures = asyncio.run(measure(options))
    Console().print_json(json.dumps(figures))
    write_json(options, figures)


if __name__ == "__main__":
    main()
