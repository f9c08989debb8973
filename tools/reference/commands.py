"""The options of `inferctl up`, as a Markdown list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer.main

from inferflux.cli.app import app

from .markdown import entries


def blocks() -> dict[str, str]:
    """The list by the name of its place in the page."""
    return {"options of inferctl up": entries(_rows("up"))}


def _rows(name: str) -> Iterable[tuple[str, ...]]:
    group: Any = typer.main.get_command(app)
    for option in group.commands[name].params:
        if not option.help:
            raise ValueError(f"{option.name} of `inferctl {name}` has no help")
        flags = ", ".join(f"`{flag}`" for flag in option.opts)
        default = "" if option.default in (None, "") or option.is_flag else f"default: `{option.default}`"
        yield (flags, default, option.help.rstrip("."))
