"""Where the time to a first token goes: in the engine, or with `--requests` on the way through all services.

    python -m benchmarks.first_token [--model-file FILE] [--tenants 6] [--rounds 2] [--clock cpu]
    python -m benchmarks.first_token --requests 200 [--untraced] [--idle-ms 20]

With `--requests`, a stack that serves the model file gets prompts of 7 tokens, one after the other. Prints
the medians of the stages of a request, from the spans of its services, and the CPU time of each process for
a request. Spans cost time themselves: `--untraced` prints the time to the first token without them.

Without, it is the engine alone, in one process. Each tenant's prompt has a beginning of its own and a
question. In the first round it is cold, in later rounds the same beginning has another question. After each
prompt of the engine the same tokens go to contexts that hold nothing else, as many as `--rows` at a time:
with flash attention and without. Of a warm prompt these compute the question, after a beginning of that
length.

Prints medians in milliseconds: of the whole, and of what llama_decode and the copies between the engine's two
contexts take; and the tokens of each step. `--clock cpu` counts the processor time of all threads, their
waiting for each other included.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.calls import grpc_client
from inferflux.common.tracing import TraceContext
from inferflux.v1 import generation_pb2, inference_pb2, inference_pb2_grpc
from inferflux.worker.processes.engine_process import SPIN_COUNT

from .load.command_line import add_json, make_parser, positive, write_json
from .load.engine_loop import SLOTS, EngineLoop, item_of
from .load.request_path import Asked, stages, traces_of
from .load.stats import median, summary
from .rows.cpu_cost import cpu_s, per_request_ms
from .rows.lab import BENCH_MODEL

if TYPE_CHECKING:
    from inferflux.worker.engine.llama.context import Context
    from inferflux.worker.engine.llama.native import Backend

# Token ids that are ordinary text in the demo model and in SmolLM2.
_IDS = range(300, 1800)
_KV_CELLS = 16384
_CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
_PARTS = ("main", "prefill", "copy in", "copy back")
_ALL = "all"
# Requests before those that are measured.
_WARMUP = 20


@dataclass(slots=True)
class Spent:
    """Seconds by part of the engine, and the tokens of each step."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    rows: list[int] = field(default_factory=list)


class Watch:
    """Times parts of a backend, until `take` gives what was spent."""

    def __init__(self, backend: Backend, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._spent = Spent()
        self._wrap(backend._main, "_compute", "main")  # noqa: SLF001 - parts that nothing else tells apart
        prefill = backend._prefill  # noqa: SLF001
        if prefill is not None:
            self._wrap(prefill.context, "_compute", "prefill")
            self._wrap(prefill, "_take_over", "copy in")
            self._wrap(prefill, "_copy", "copy back")

    def _wrap(self, of: object, name: str, part: str) -> None:
        inner = getattr(of, name)

        def timed(*arguments: Any) -> Any:
            began_s = self._clock_s()
            result = inner(*arguments)
            self._spent.seconds[part] += self._clock_s() - began_s
            if name == "_compute":
                self._spent.rows.append(arguments[0])
            return result

        setattr(of, name, timed)

    def take(self) -> Spent:
        spent, self._spent = self._spent, Spent()
        return spent


class Bare:
    """A context that holds one prompt and nothing else."""

    def __init__(
        self, backend: Backend, cells: int, rows: int, *, flash_attention: bool, threads: int
    ) -> None:
        from inferflux.worker.engine.llama.context import Context

        self._rows = rows
        self._context: Context = Context(
            backend._model,  # noqa: SLF001 - a context that no engine has
            cells=cells,
            sequences=1,
            batch_tokens=rows,
            physical_batch=rows,
            flash_attention=flash_attention,
            threads=threads,
            vocabulary=backend.vocab.size,
        )

    def compute(self, prompt: list[int], first: int) -> None:
        """The tokens from `first` on, after as many as there were before, whichever these are."""
        self._context.forget(0, first)
        tokens = np.array(prompt, np.int32)
        for at in range(first, len(prompt), self._rows):
            self._context.decode_tokens(tokens[at : at + self._rows], seq_id=0, position=at)


@dataclass(slots=True)
class Times:
    """Times of prompts of one kind, by part or context: seconds of each prompt."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rows: list[list[int]] = field(default_factory=list)

    def add(self, spent: Spent) -> None:
        for part in (*_PARTS, _ALL):
            self.seconds[part].append(spent.seconds.get(part, 0.0))
        self.rows.append(spent.rows)

    def to_json(self) -> dict[str, Any]:
        return {"ms": {name: [s * 1000 for s in of] for name, of in self.seconds.items()}, "rows": self.rows}


class Trial:
    """An engine and bare contexts that compute the same prompts in turn."""

    def __init__(self, backend: Backend, options: argparse.Namespace) -> None:
        self._clock_s = _CLOCKS[options.clock]
        self._loop = EngineLoop(backend)
        cells = options.prefix_tokens + options.question_tokens
        self._bare = {
            f"bare, {'flash' if is_flash else 'no flash'}": Bare(
                backend, cells, options.rows, flash_attention=is_flash, threads=options.threads
            )
            for is_flash in (True, False)
        }
        self._watch = Watch(backend, self._clock_s)
        self._asked = 0

    def ask(self, prompt: list[int], known: int, times: Times) -> None:
        """Time a prompt whose first `known` tokens are cached."""
        item = item_of(self._asked, prompt, 1)
        self._asked += 1
        self._watch.take()
        began_s = self._clock_s()
        self._loop.start(item)
        self._loop.run_all()
        ended_s = self._clock_s()
        spent = self._watch.take()
        spent.seconds[_ALL] = ended_s - began_s
        times.add(spent)
        for name, bare in self._bare.items():
            began_s = self._clock_s()
            bare.compute(prompt, known)
            times.seconds[name].append(self._clock_s() - began_s)


def measure(backend: Backend, options: argparse.Namespace) -> dict[str, Times]:
    """Cold prompts, then warm ones."""
    trial = Trial(backend, options)
    rng = random.Random(options.seed)
    prefixes = [rng.choices(_IDS, k=options.prefix_tokens) for _ in range(options.tenants)]
    found = {"cold": Times(), "warm": Times()}
    for number in range(1 + options.rounds):
        for prefix in prefixes:
            prompt = prefix + rng.choices(_IDS, k=options.question_tokens)
            known = options.prefix_tokens if number else 0
            trial.ask(prompt, known, found["warm" if number else "cold"])
    return found


def to_table(found: dict[str, Times], clock: str) -> Table:
    names = list(found["cold"].seconds)
    table = Table("", *names, "tokens of its steps", title=f"ms ({clock}), medians", title_justify="left")
    for kind, times in found.items():
        cells = [f"{median(times.seconds[name]) * 1000:.1f}" for name in names]
        table.add_row(kind, *cells, " ".join(map(str, times.rows[len(times.rows) // 2])))
    return table


async def _ask(stack: Stack, stub: inference_pb2_grpc.InferenceServiceAsyncStub, number: int) -> Asked:
    """Send a prompt of 7 tokens; take its first token, and the second, which ends it."""
    context = TraceContext(secrets.token_hex(16), secrets.token_hex(8))
    request = inference_pb2.GenerateRequest(
        model=stack.model_name,
        text=f"Tell me of day {number % 10}.",
        params=generation_pb2.GenerationParams(max_tokens=2, ignore_eos=True),
    )
    metadata = grpc_client.outgoing(api_key=stack.api_key, traceparent=context.traceparent)
    asked = Asked(context.trace_id, sent=time.time())
    async for response in stub.Generate(request, metadata=metadata):
        if not asked.arrived and response.chunk.token_ids:
            asked.arrived = time.time()
            asked.sampled = response.chunk.sampled_unix_us / 1e6
    return asked


async def measure_path(options: argparse.Namespace) -> dict[str, Any]:
    """The stages of requests at idle in ms, and the CPU time of each process."""
    with tempfile.TemporaryDirectory(prefix="inferflux-path-") as folder:
        path = Path(folder) / "traces.jsonl"
        env = {} if options.untraced else {"INFERFLUX_TRACE_FILE": str(path)}
        async with Stack(StackOptions(model=options.model_file, env=env)) as stack:
            pids = {name: process.pid for name, process in stack.processes.items()}
            async with grpc.aio.insecure_channel(stack.endpoint) as channel:
                stub = inference_pb2_grpc.InferenceServiceStub(channel)
                for number in range(_WARMUP):
                    await _ask(stack, stub, number)
                before = {name: cpu_s(pid) for name, pid in pids.items()}
                asked = []
                for number in range(options.requests):
                    await asyncio.sleep(options.idle_ms / 1000)
                    asked.append(await _ask(stack, stub, number))
                after = {name: cpu_s(pid) for name, pid in pids.items()}
        lines = [] if options.untraced else path.read_text().splitlines()
    return {
        "first_token_ms": summary(each.ttft_s for each in asked),
        "stages_ms": {} if options.untraced else stages(traces_of(lines, asked)),
        "cpu_ms_per_request": per_request_ms(before, after, options.requests),
    }


def to_path_table(found: dict[str, Any]) -> Table:
    table = Table("", "ms", title="medians at idle", title_justify="left")
    for stage, ms in found["stages_ms"].items():
        table.add_row(stage, f"{ms:.2f}")
    table.add_section()
    for name, ms in found["first_token_ms"].items():
        table.add_row(f"first token, {name}", f"{ms:.2f}")
    table.add_section()
    for process, ms in found["cpu_ms_per_request"].items():
        table.add_row(f"CPU per request, {process}", f"{ms:.2f}")
    return table


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=positive, help="measure the way through all services by them")
    parser.add_argument("--untraced", action="store_true", help="of these: without spans")
    parser.add_argument("--idle-ms", type=float, default=20.0, help="of these: pause between two")
    parser.add_argument(
        "--model-file", type=Path, help="GGUF to measure; default: SmolLM2, the demo model of --requests"
    )
    parser.add_argument("--tenants", type=positive, default=6)
    parser.add_argument("--prefix-tokens", type=positive, default=1000)
    parser.add_argument("--question-tokens", type=positive, default=24)
    parser.add_argument("--rounds", type=positive, default=2, help="warm ones")
    parser.add_argument("--rows", type=positive, default=512, help="of a bare context, at a time")
    parser.add_argument("--clock", choices=list(_CLOCKS), default="wall")
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    add_json(parser, "all times")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.requests:
        path = uvloop.run(measure_path(options))
        Console().print(to_path_table(path))
        write_json(options, path)
        return
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.llama.native import Backend

    config = engine_pb2.EngineConfig(
        model_path=str(options.model_file or BENCH_MODEL),
        slots=SLOTS,
        sequences=80,
        kv_cells=_KV_CELLS,
        batch_tokens=2048,
        threads=options.threads,
        flash_attention=True,
    )
    found = measure(Backend(config), options)
    Console().print(to_table(found, options.clock))
    write_json(options, {kind: times.to_json() for kind, times in found.items()})


if __name__ == "__main__":
    main()
