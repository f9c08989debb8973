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
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from inferflux.cli.model_files.named import SMOLLM2, fetched, models_folder
from inferflux.cli.stack import Stack, StackOptions
from inferflux.cli.stack.servers import dying_with_parent

from .calm import STOLEN, StolenTime
from .peers import ROOT

SLOTS = 16
BENCH_MODEL = SMOLLM2.file(models_folder(os.environ))
"""A trained model, a step of which takes long enough that the engine is most of the cost."""
DEMO_MODEL = ROOT / "models" / "inferflux-demo.gguf"
_LARGE_MODEL = ROOT / "models" / "bench-0.5b.gguf"
Script = Literal["engine", "long_prompt", "serve"]
"""The modules of this package that a measurement runs as processes of their own."""


class LabError(Exception):
    """A script failed; says which and how."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        pairs: how often ours and the other are run in turn.
        waves: requests of a run, in multiples of the concurrency.
        fewest_requests: of a run, with however few at a time.
        single_requests: requests of a run that measures first tokens alone.
        open_loop_s: how long requests come at random moments.
    """

    pairs: int = 3
    waves: int = 4
    fewest_requests: int = 12
    single_requests: int = 300
    open_loop_s: float = 45.0


FULL = Plan()
QUICK = Plan(pairs=1, waves=1, fewest_requests=4, single_requests=40, open_loop_s=10.0)


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
    async def stack(self, model: Path) -> AsyncIterator[Stack]:
        """InferFlux on this machine, serving `model`."""
        async with Stack(StackOptions(model=model, slots=SLOTS)) as stack:
            yield stack

    async def large_model(self) -> Path:
        """The file of a model of 0.5 billion random weights; written if it is not there yet, and kept.

        Raises:
            LabError: it could not be written.
        """
        if not _LARGE_MODEL.exists():
            self.say(f"  writing {_LARGE_MODEL.relative_to(ROOT)}, once")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tools.bench_model", "--out", str(_LARGE_MODEL), cwd=ROOT
            )
            if await process.wait() != 0:
                raise LabError("tools.bench_model could not write the model")
        return _LARGE_MODEL


@asynccontextmanager
async def busy_loops(count: int) -> AsyncIterator[None]:
    """That many processes that only compute, each as nice as a server."""
    command = dying_with_parent([sys.executable, "-c", "while True: pass"])
    loops = [await asyncio.create_subprocess_exec(*command) for _ in range(count)]
    try:
        yield
    finally:
        for process in loops:
            process.kill()
            await process.wait()


def need_bench_model() -> None:
    """Raises LabError when SmolLM2 was not fetched."""
    if fetched(SMOLLM2) is None:
        raise LabError(f"{BENCH_MODEL} is not there: run `make models`, which fetches it")
