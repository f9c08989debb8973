"""`inferctl doctor`: look at an installation on this machine, and say what to do."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape

from inferflux.cli.reach.command import AsJson, StateDirectory, make_console, state_path
from inferflux.cli.reach.state_dir import StateDir
from inferflux.cli.show.rows import make_table

from .finding import Finding, Level


class Service(StrEnum):
    """A kind of process that may run on a machine."""

    GATEWAY = "gateway"
    POLICY = "policy"
    SCHEDULER = "scheduler"
    WORKER = "worker"


_STYLES = {Level.OK: "green", Level.UNKNOWN: "dim", Level.WARNING: "yellow", Level.PROBLEM: "red"}


def doctor(
    env_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--env-file",
            metavar="FILE",
            help="Variables of the services, as systemd and compose read them, or a .service of systemd; in "
            "place of this environment's. May be repeated; later ones count.",
        ),
    ] = None,
    service: Annotated[
        list[Service] | None,
        typer.Option("--service", help="What runs on this machine; may be repeated. All by default."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name by which clients reach the gateway; may be repeated."),
    ] = None,
    as_json: AsJson = False,
    state_dir: StateDirectory = None,
) -> None:
    """Check an installation on this machine: ports, servers, certificates, limits; and say what to do."""
    found = asyncio.run(
        _look(env_file or [], tuple(map(str, service or ())), tuple(host or ()), state_path(state_dir))
    )
    if as_json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in found], indent=2) + "\n")
    else:
        make_console().print(view(found))
    raise typer.Exit(int(any(finding.level is Level.PROBLEM for finding in found)))


async def _look(
    env_files: Sequence[Path], services: tuple[str, ...], hosts: tuple[str, ...], state_dir: Path
) -> list[Finding]:
    from .examine import examine
    from .facts import environment
    from .installation import Installation, is_named

    env = environment.read(env_files, os.environ)
    settings = await environment.settings_of(env)
    return await examine(
        Installation(
            env=env,
            is_named=bool(env_files) or is_named(env),
            state_dir=state_dir,
            stack=StateDir(state_dir).running(),
            settings=settings,
            services=services or tuple(settings),
            hosts=hosts,
        )
    )


def view(found: Sequence[Finding]) -> RenderableType:
    """A row per finding, and in the line below what to do; then how many problems and warnings there are."""
    table = make_table("", "check", "found", last=40)
    for one in found:
        level = f"[{_STYLES[one.level]}]{one.level}[/]"
        remedy = f"\n[dim]->[/] {escape(one.remedy)}" if one.remedy else ""
        table.add_row(level, one.check, f"{escape(one.said)}{remedy}")
    counts = Counter(one.level for one in found)
    n_problems, n_warnings = counts[Level.PROBLEM], counts[Level.WARNING]
    style = "red" if n_problems else "yellow" if n_warnings else "green"
    said = f"{n_problems} problem{'s' * (n_problems != 1)}, {n_warnings} warning{'s' * (n_warnings != 1)}"
    return Group(table, "", f"[{style}]{said}[/]")
