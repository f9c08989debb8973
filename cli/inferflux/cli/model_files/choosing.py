"""The model that `inferctl up --model` means."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from inferflux.cli.reach.errors import CommandError
from inferflux.cli.reach.state_dir import StateDir
from inferflux.cli.stack.options import MODELS_STORE, find_model

from .download import CannotFetchError
from .fetching import fetch
from .named import NAMED
from .pulling import pull

DEMO = "demo"
_SOURCES = ("hf:", "https://", "http://", "ollama:", "oci://", "file:")

_INSTEAD = f"`--model {DEMO}` serves the 3 MB model that comes with InferFlux, `--model FILE` a GGUF file"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The model of a stack; `name`: empty: as its file is called; `mmproj`: None: it has no projector."""

    path: Path
    name: str = ""
    mmproj: Path | None = None


def choose(wanted: str, state_dir: Path, console: Console) -> Chosen:
    """Find a model, and get it where it is not here.

    Args:
        wanted: `demo`, a name of `NAMED`, a GGUF file, the name of a model of the store, or a source as
            `inferctl pull` takes it.
        console: is told what is fetched.

    Raises:
        CommandError: there is no such model, or it cannot be had.
    """
    if wanted == DEMO:
        return Chosen(find_model(None))
    if wanted in NAMED and not Path(wanted).is_file():
        return Chosen(_fetched(wanted, console))
    if is_path(wanted):
        return Chosen(find_model(Path(wanted)))
    store = Path(os.environ.get(MODELS_STORE) or state_dir / "models")
    if not wanted.startswith(_SOURCES) and not store.is_dir():
        raise CommandError(
            f"there is no model {wanted!r}: --model is {', '.join((DEMO, *NAMED))}, a GGUF file, the name of "
            "a model that was pulled, or a source such as hf:owner/repo:Q4_K_M"
        )
    StateDir(state_dir).prepare()
    try:
        found = pull(wanted, store, console)
    except CommandError as error:
        raise CommandError(f"{error}. {_INSTEAD}") from None
    return Chosen(found.path, found.name, found.mmproj)


def is_path(wanted: str) -> bool:
    """Return whether a file is meant: sources and names have no such ends and beginnings."""
    if wanted.startswith(_SOURCES):
        return False
    return wanted.endswith(".gguf") or wanted.startswith(("/", "./", "../", "~")) or Path(wanted).exists()


def _fetched(name: str, console: Console) -> Path:
    try:
        return fetch(NAMED[name], console)
    except CannotFetchError as error:
        raise CommandError(f"{NAMED[name].title} cannot be fetched: {error}. {_INSTEAD}") from None
