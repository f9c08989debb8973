"""JetStream's disk is full for a while: what clients get meanwhile, and how soon they are served again.

    sudo python benchmarks/full_disk.py --seconds 20

A whole stack keeps its streams on a file system of some MB that is filled up under a running stream and
emptied again. It has to be mounted, which takes root and Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import uvloop
from rich.console import Console

from inferflux.cli.reach.client import Client
from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.contract.errors import InferFluxError
from inferflux.v1 import generation_pb2

_SIZE_MB = 16
_PAUSE_S = 0.1
_ANSWER_LIMIT_S = 30.0


class MountError(Exception):
    """No file system can be mounted here."""


class SmallDisk:
    """A file system of some MB in memory, which can be filled up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filling = path / "filling"

    @classmethod
    @contextlib.contextmanager
    def mounted(cls, size_mb: int = _SIZE_MB) -> Iterator[Self]:
        """Raises:
        MountError: this process may not mount.
        """
        with tempfile.TemporaryDirectory(prefix="inferflux-disk-") as folder:
            command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "inferflux-small-disk", folder]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except FileNotFoundError:
                raise MountError("there is no `mount` here") from None
            if done.returncode:
                raise MountError(f"cannot mount: {done.stderr.strip()}")
            try:
                yield cls(Path(folder))
            finally:
                subprocess.run(["umount", "-l", folder], check=True)  # noqa: S607

    def fill(self) -> None:
        """Leave not a byte."""
        file = os.open(self._filling, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            with contextlib.suppress(OSError):
                while True:
                    os.write(file, b"\0" * 4096)
        finally:
            os.close(file)

    def empty(self) -> None:
        """Give the space back."""
        self._filling.unlink()


@dataclass(slots=True)
class Found:
    """In seconds."""

    refusals: list[tuple[float, str]] = field(default_factory=list)
    healed_s: float = 0.0


async def _ask(client: Client, model: str) -> str:
    """One short request: "" when it was answered, else why not."""
    params = generation_pb2.GenerationParams(max_tokens=4)
    try:
        async with asyncio.timeout(_ANSWER_LIMIT_S):
            async for _ in client.generate("Hello", model=model, params=params):
                pass
    except InferFluxError as error:
        return error.reason
    except TimeoutError:
        return "NO_ANSWER"
    return ""


async def _until_answered(client: Client, model: str) -> None:
    # Only an answer shows that there are answers.
    while await _ask(client, model):  # noqa: ASYNC110
        await asyncio.sleep(_PAUSE_S)


async def measure(seconds: float) -> Found:
    """Fill the disk for `seconds`, asking all the while."""
    found = Found()
    with SmallDisk.mounted() as disk:
        async with Stack(StackOptions(nats_store=disk.path)) as stack, Client(stack.target) as client:
            await _until_answered(client, stack.model_name)
            disk.fill()
            full_until = time.monotonic() + seconds
            while time.monotonic() < full_until:
                began = time.monotonic()
                reason = await _ask(client, stack.model_name)
                found.refusals.append((time.monotonic() - began, reason or "answered"))
                await asyncio.sleep(_PAUSE_S)
            disk.empty()
            emptied = time.monotonic()
            await _until_answered(client, stack.model_name)
            found.healed_s = time.monotonic() - emptied
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the disk is full")
    asked = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            found = runner.run(measure(asked.seconds))
        except MountError as error:
            sys.exit(str(error))
    console = Console()
    times = [seconds for seconds, _ in found.refusals]
    reasons = sorted({reason for _, reason in found.refusals})
    console.print(f"{len(times)} requests while the disk was full: {', '.join(reasons)}")
    console.print(
        f"the first one ended after {times[0]:.2f} s, the slowest other after {max(times[1:]):.2f} s"
    )
    console.print(f"the first answer {found.healed_s:.2f} s after there was space again")


if __name__ == "__main__":
    main()
