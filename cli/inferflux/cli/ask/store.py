"""`inferctl pull`, `models rm`, `models verify`: the store of models on a worker's machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from inferflux.cli.reach.client import Client
from inferflux.cli.reach.command import Call, make_console, print_json
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.show.bars import bar
from inferflux.client.retrying import GATEWAY_LOST
from inferflux.common.contract.errors import Unavailable
from inferflux.v1 import model_pb2

# Whatever else ends a pull has a reason of its own.
_GATEWAY_AWAY = (GATEWAY_LOST, Unavailable.default_reason)
_GOES_ON = "The worker goes on with it; the same command follows it again."

Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="WORKER",
        help="The worker process whose store it is. Needed where there are several.",
    ),
]


def pull(
    source: Annotated[
        str,
        typer.Argument(
            help="https://..., a file or folder on the worker's machine, "
            "hf:owner/repo[:quantization or file], ollama:name[:tag], oci://host/name[:tag]."
        ),
    ],
    name: Annotated[str, typer.Option(help="What it is to be called; as its source is, by default.")] = "",
    sha256: Annotated[str, typer.Option(help="Hex digest that the file must have.")] = "",
    mmproj: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Which file beside it is its projector, or none; by default the one that is there.",
        ),
    ] = "",
    host: Host = "",
    *,
    call: Call,
) -> None:
    """Fetch a model into a worker's store. It goes on without this command; run again, it resumes."""
    request = model_pb2.PullRequest(
        source=_absolute(source), name=name, sha256=sha256.lower(), mmproj=mmproj, host_id=host
    )

    async def run(client: Client) -> None:
        job = await _follow(client.pull(request))
        if call.as_json:
            print_json(job)
        else:
            make_console().print(f"{escape(job.name)}: {job.total_bytes:,} bytes, sha256 {job.digest}")
            if job.message:
                make_console().print(f"[yellow]{escape(job.message)}[/]")

    call.run(run)


def remove(name: Annotated[str, typer.Argument(help="The model.")], host: Host = "", *, call: Call) -> None:
    """Delete a model of a store, or what a broken pull left of it. A loaded one is refused."""

    async def run(client: Client) -> None:
        job = await client.remove_model(model_pb2.RemoveModelRequest(name=name, host_id=host))
        if call.as_json:
            print_json(job)
        else:
            make_console().print(f"{escape(name)} is removed: {job.done_bytes:,} bytes are free")

    call.run(run)


def verify(
    name: Annotated[str, typer.Argument(help="The model; all of the store by default.")] = "",
    host: Host = "",
    *,
    call: Call,
) -> None:
    """Read models of a store again, and compare them with what was pulled. Exits with 1 where one differs."""

    async def run(client: Client) -> None:
        job = await _follow(client.verify_model(model_pb2.VerifyModelRequest(name=name, host_id=host)))
        if call.as_json:
            print_json(job)
        if job.differing:
            raise CommandError(f"not what was pulled: {', '.join(job.differing)}")
        if not call.as_json:
            n = job.total_bytes
            make_console().print(f"{n:,} bytes are what was pulled" if n else "the store is empty")

    call.run(run)


async def _follow(jobs: AsyncGenerator[model_pb2.StoreJob, None]) -> model_pb2.StoreJob:
    """The job when it is done; a bar tells how far it is meanwhile.

    Raises:
        CommandError: nothing was told of it.
    """
    last: model_pb2.StoreJob | None = None
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with bar(console, TextColumn("{task.description}"), *columns) as progress:
        task = progress.add_task("", total=None)
        try:
            async for job in jobs:
                last = job
                doing = f"{job.name} {job.doing}".strip()
                progress.update(
                    task, description=escape(doing), total=job.total_bytes or None, completed=job.done_bytes
                )
        except asyncio.CancelledError:
            if last is not None:
                console.print(_GOES_ON)
            raise
        except Unavailable as error:
            if last is not None and error.reason in _GATEWAY_AWAY:
                error.add_note(_GOES_ON)
            raise
    if last is None:
        raise CommandError("the gateway told nothing of it")
    return last


def _absolute(source: str) -> str:
    """A path of this machine as one that does not depend on the working directory."""
    path = Path(source.removeprefix("file:")).expanduser()
    is_path = source.startswith(("file:", "./", "../", "~")) or path.exists()
    if not is_path and ":" not in source and path.suffix == ".gguf" and not path.is_absolute():
        raise CommandError(f"there is no file {source} in {Path.cwd()}")
    return f"file:{path.resolve()}" if is_path else source
