"""The options of `inferctl up`, as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer.main

from inferflux.cli.app import app

from .markdown import table


def blocks() -> dict[str, str]:
    """The table by the name of its place in the page."""
    return {"options of inferctl up": table(("option", "default", "meaning"), _rows("up"))}


def _rows(name: str) -> Iterable[tuple[str, ...]]:
    group: Any = typer.main.get_command(app)
    for option in group.commands[name].params:
        if not option.help:
            raise ValueError(f"{option.name} of `inferctl {name}` has no help")
        flags = ", ".join(f"`{flag}`" for flag in option.opts)
        default = "" if option.default in (None, "") or option.is_flag else f"`{option.default}`"
        yield (flags, default, option.help.rstrip("."))
