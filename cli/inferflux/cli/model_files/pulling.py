"""Pulls a model from where it is published into the store of the state directory, before a stack starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from inferflux.cli.reach.errors import CommandError
from inferflux.cli.show.bars import bar

_PULL = "inferflux.worker.store.local"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model of the store; `mmproj`: its projector, None where it has none."""

    name: str
    path: Path
    mmproj: Path | None


def pull(source: str, store: Path, console: Console) -> StoredModel:
    """The model of a source, or of this name in the store. What an interrupted pull brought is used.

    Raises:
        CommandError: it cannot be had; says why.
    """
    env = {"INFERFLUX_MODELS_STORE": str(store), **os.environ}
    command = [sys.executable, "-m", _PULL, source]
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    said: dict[str, Any] = {}
    with (
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child,
        bar(console, TextColumn("{task.description}"), *columns) as progress,
    ):
        task = progress.add_task(escape(source), total=None)
        try:
            for line in child.stdout or ():
                said = json.loads(line)
                doing = f"{source} {said['doing']}".strip()
                progress.update(
                    task, description=escape(doing), total=said["total"] or None, completed=said["done"]
                )
        except KeyboardInterrupt:
            child.kill()
            console.print("What came so far is kept: the next time it goes on from there.")
            raise
    if child.returncode or not said.get("has_ended"):
        raise CommandError(f"{source} cannot be pulled: its process ended with status {child.returncode}")
    if said["code"]:
        raise CommandError(f"{source} cannot be served: {said['message']}")
    if said["message"]:
        console.print(f"[yellow]{escape(said['message'])}[/]")
    path, *projector = map(Path, said["paths"])
    return StoredModel(said["name"], path, projector[0] if projector else None)
