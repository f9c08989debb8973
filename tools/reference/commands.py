"""The options of `inferctl up` and `doctor`, as Markdown lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer.main

from inferflux.cli.app import app

from .markdown import entries


def blocks() -> dict[str, str]:
    """The lists by the names of their places in the page."""
    return {f"options of inferctl {name}": entries(_rows(name)) for name in ("up", "doctor")}


def _rows(name: str) -> Iterable[tuple[str, ...]]:
    group: Any = typer.main.get_command(app)
    for option in group.commands[name].params:
        if not option.help:
            raise ValueError(f"{option.name} of `inferctl {name}` has no help")
        flags = ", ".join(f"`{flag}`" for flag in option.opts)
        default = "" if option.default in (None, "") or option.is_flag else f"default: `{option.default}`"
        yield (flags, default, option.help.rstrip("."))
