"""`inferctl admin cache`: what workers and the answer cache keep for later requests."""

from __future__ import annotations

from typing import Annotated

import typer

from inferflux.cli.reach.client import Client
from inferflux.cli.reach.command import Call
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.reach.flag_groups import Commands
from inferflux.cli.show.cache_tables import cleared_view
from inferflux.v1 import admin_pb2

cache = Commands(help="Clear what is kept of earlier requests for later ones.", no_args_is_help=True)


@cache.callback()
def _group() -> None:
    """A command of its own, however few there are."""


@cache.command()
def clear(
    model: Annotated[str, typer.Option("--model", "-m", help="Only of this model.")] = "",
    worker: Annotated[
        str, typer.Option(metavar="WORKER", help="Only of this one, as `inferctl status` names it.")
    ] = "",
    tenant: Annotated[
        str,
        typer.Option(help="Only the prefixes that no other tenant shares, and the answers, of this tenant."),
    ] = "",
    answers: Annotated[bool, typer.Option("--answers", help="The answer cache.")] = False,
    prefixes: Annotated[
        bool, typer.Option("--prefixes", help="Cached prefixes in the workers' KV caches.")
    ] = False,
    tiers: Annotated[
        bool, typer.Option("--tiers", help="Cached prefixes in the workers' host memory and on their disks.")
    ] = False,
    *,
    call: Call,
) -> None:
    """Clear answers, prefixes and tiers, or those that are named. Requests keep what they have."""
    request = admin_pb2.ClearCacheRequest(
        model=model, worker_id=worker, tenant=tenant, answers=answers, prefixes=prefixes, tiers=tiers
    )

    async def run(client: Client) -> None:
        cleared = await client.clear_cache(request)
        call.show(cleared, cleared_view)
        failed = [each.worker_id for each in cleared.workers if each.error]
        if cleared.answers.error:
            failed.append("the answer cache")
        if failed:
            raise CommandError(f"not cleared: {', '.join(failed)}")

    call.run(run)
