"""`inferctl admin usage`: what tenants have used."""

from __future__ import annotations

from typing import Annotated

import typer

from inferflux.cli.reach.client import Client
from inferflux.cli.reach.command import (
    ApiKey,
    AsJson,
    Endpoint,
    StateDirectory,
    make_console,
    print_json,
    with_client,
)
from inferflux.cli.show.policy_tables import used_table
from inferflux.v1 import policy_pb2


def usage(
    tenant: Annotated[str, typer.Argument(help="The tenant.")],
    as_json: AsJson = False,
    endpoint: Endpoint = "",
    api_key: ApiKey = "",
    state_dir: StateDirectory = None,
) -> None:
    """Show the requests and tokens of a tenant, of all its keys, since they are counted."""

    async def run(client: Client) -> None:
        found = await client.policy("GetUsage", policy_pb2.GetUsageRequest(tenant=tenant))
        print_json(found) if as_json else make_console().print(used_table(found))

    with_client(run, endpoint, api_key, state_dir)
