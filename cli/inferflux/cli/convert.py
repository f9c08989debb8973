"""`inferctl models convert`: a GGUF file of a model as Hugging Face's libraries save it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from .reach.command import make_console
from .reach.errors import CommandError
from .show.bars import bar
from .show.rows import bytes_words

OutTypeName = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
"""Values of `inferflux.convert.out_types.OutType`, which may not be installed."""


def convert(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="config.json, model.safetensors or its shards, and the tokenizer's files."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="By default DIR's name and the type, here.")
    ] = None,
    outtype: Annotated[
        OutTypeName,
        typer.Option(
            metavar="TYPE", help=f"What matrices are stored in: {', '.join(get_args(OutTypeName))}."
        ),
    ] = "f16",
    name: Annotated[str, typer.Option(help="What the file calls the model; DIR's name by default.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Make a GGUF file of a folder of safetensors, on this machine. No code of the model is run."""
    try:
        from inferflux.convert import ConversionError
        from inferflux.convert import convert as convert_folder
        from inferflux.convert.out_types import OutType
    except ModuleNotFoundError as error:
        raise CommandError(f"there is no module {error.name}: pip install inferflux-convert") from None

    given = folder.expanduser()
    if not given.is_dir():
        raise CommandError(f"{folder} is no folder")
    path = out.expanduser() if out is not None else Path(f"{given.resolve().name}-{outtype}.gguf")
    if path.is_dir():
        raise CommandError(f"{path} is a folder")
    if path.exists() and not force:
        raise CommandError(f"{path} is there already: --force replaces it")
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("tensors"), TimeElapsedColumn())
    console = Console(stderr=True)
    with bar(console, TextColumn("{task.description}"), *columns) as progress:
        task = progress.add_task(escape(path.name), total=None)
        try:
            made = convert_folder(
                given,
                path,
                out_type=OutType(outtype),
                name=name,
                on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
        except ConversionError as error:
            raise CommandError(str(error)) from None
    console = make_console()
    for note in made.notes:
        console.print(f"[yellow]{escape(note)}[/]")
    console.print(
        f"{escape(str(path))}: {made.architecture}, {made.n_tensors} tensors, {bytes_words(made.n_bytes)}"
    )
