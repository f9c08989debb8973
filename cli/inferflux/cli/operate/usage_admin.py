"""`inferctl admin usage`: what tenants have used."""

from __future__ import annotations

from typing import Annotated

import typer

from inferflux.cli.reach.command import Call
from inferflux.cli.show.policy_tables import used_table
from inferflux.v1 import policy_pb2


def usage(tenant: Annotated[str, typer.Argument(help="The tenant.")], *, call: Call) -> None:
    """Show the requests and tokens of a tenant, of all its keys, since they are counted."""
    call.policy("GetUsage", policy_pb2.GetUsageRequest(tenant=tenant), used_table)
