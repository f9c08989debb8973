"""`inferctl admin usage`: what tenants have used."""

from __future__ import annotations

from typing import Annotated

import typer

from inferflux.cli.reach.command import Call
from inferflux.cli.show.policy_tables import used_table
from inferflux.v1 import policy_pb2


def usage(tenant: Annotated[str, typer.Argument(help="The tenant.")], *, call: Call) -> None:
    """Show how many requests and tokens a tenant has used, with all its keys, since its first request."""
    call.policy("GetUsage", policy_pb2.GetUsageRequest(tenant=tenant), used_table)
