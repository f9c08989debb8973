"""Runs the scripts and servers that a measurement needs."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import psutil
from rich.console import Console

from inferflux.cli.stack import Stack, StackOptions

from .calm import STOLEN, StolenTime
from .peers import ROOT

ENGINE_CORE = 1
OTHER_CORE = 0
SLOTS = 16
BENCH_MODEL = ROOT / "models" / "bench.gguf"
DEMO_MODEL = ROOT / "models" / "inferflux-demo.gguf"
Script = Literal["client_cost", "engine", "long_prompt", "serve"]
"""The modules of this package that a measurement runs as processes of their own."""
_KINDS = ("nats", "valkey", "policy", "scheduler", "worker", "gateway")


class Layout(Enum):
    """How a stack uses the cores."""

    ONE_WORKER = "one worker, whose engine has a thread for each core"
    WORKER_PER_CORE = "a worker for each core, whose engine has one thread"
    PINNED = "an engine of one thread with a core of its own, everything else on the other core"


class LabError(Exception):
    """A script failed; says which and how."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        pairs: how often ours and the other are run in turn.
        waves: requests of a run, in multiples of the concurrency.
        single_requests: requests of a run that sends one at a time.
        repeats: long prompts sent.
        open_loop_s: how long requests come at random moments.
    """

    pairs: int = 3
    waves: int = 4
    single_requests: int = 300
    repeats: int = 3
    open_loop_s: float = 45.0


FULL = Plan()
QUICK = Plan(pairs=1, waves=1, single_requests=40, repeats=1, open_loop_s=10.0)


class Lab:
    """Starts what is to be measured, and measures it with the scripts of this folder."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self.plan = plan
        self._console = console
        self._takes = itertools.count(1)

    async def serve(
        self, *arguments: str | float | Path, api_key: str = "", may_fail: bool = False
    ) -> dict[str, Any]:
        """Run `benchmarks.serve` with prompts that no run before had: a server caches those."""
        take = ("--take", next(self._takes))
        return await self.run("serve", *arguments, *take, api_key=api_key, may_fail=may_fail)

    def say(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    async def run(
        self, script: Script, *arguments: str | float | Path, api_key: str = "", may_fail: bool = False
    ) -> dict[str, Any]:
        """Run `benchmarks.<script>`; returns its JSON, the command and what was stolen meanwhile (`calm`).

        Args:
            may_fail: whether requests may fail: its figures count them.

        Raises:
            LabError: it failed.
        """
        words = ["-m", f"benchmarks.{script}", *map(str, arguments)]
        shown = shlex.join(["python", *words]).replace(f"{ROOT}/", "")
        with tempfile.TemporaryDirectory(prefix="inferflux-bench-") as folder:
            out = Path(folder) / "result.json"
            stolen = StolenTime()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                "--json",
                str(out),
                cwd=ROOT,
                env={**os.environ, "INFERFLUX_API_KEY": api_key},
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                _, errors = await process.communicate()
            except asyncio.CancelledError:
                process.kill()
                await process.wait()
                raise
            if process.returncode != 0 and not (may_fail and out.is_file()):
                raise LabError(f"{shown}: {errors.decode(errors='replace').strip()[-2000:]}")
            result: dict[str, Any] = json.loads(out.read_text())
        share = stolen.share()
        if rate := result.get("tokens_per_s"):
            self.say(f"  {rate:9.1f} tokens/s  {shown}")
        return {**result, "command": shown, STOLEN: round(share, 4)}

    @asynccontextmanager
    async def stack(self, model: Path, layout: Layout = Layout.ONE_WORKER) -> AsyncIterator[Stack]:
        """InferFlux on this machine, serving `model`."""
        async with Stack(options_of(model, layout)) as stack:
            if layout is Layout.PINNED:
                pin(engine_of(stack), ENGINE_CORE)
            yield stack


def options_of(model: Path, layout: Layout) -> StackOptions:
    """The stack that serves `model` so."""
    if layout is Layout.PINNED:
        cpus = dict.fromkeys(_KINDS, frozenset({OTHER_CORE}))
        return StackOptions(model=model, slots=SLOTS, threads=1, cpus=cpus)
    if layout is Layout.WORKER_PER_CORE:
        cores = len(os.sched_getaffinity(0))
        slots = -(-SLOTS // cores)
        return StackOptions(model=model, workers=cores, slots=slots, threads=1)
    return StackOptions(model=model, slots=SLOTS)


def engine_of(stack: Stack) -> psutil.Process:
    """The worker's engine process.

    Raises:
        LabError: it has none.
    """
    worker = psutil.Process(stack.processes["worker-0"].pid)
    for child in worker.children():
        if "inferflux.worker.engine" in child.cmdline():
            return child
    raise LabError("the worker has no engine process")


def pin(process: psutil.Process, core: int) -> None:
    """Let every thread of a process run on one core alone."""
    for thread in process.threads():
        os.sched_setaffinity(thread.id, {core})
