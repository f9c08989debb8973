"""`inferctl admin rate-limit` and `usage`: how much keys, tenants and models may have, and what was used."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from inferflux.cli.reach.bounds import UINT64
from inferflux.cli.reach.command import Call
from inferflux.cli.reach.flag_groups import Commands
from inferflux.cli.show.policy_tables import limits_table, usage_table, used_table
from inferflux.common.contract.callers.credentials import subject_id
from inferflux.v1 import policy_pb2

rate_limit = Commands(help="Set how much keys, tenants and models may use.", no_args_is_help=True)

Subject = Annotated[
    str,
    typer.Argument(
        metavar="SUBJECT",
        help="key:KEY_ID, tenant:NAME or model:NAME; tenant:* is for each tenant without limits of its own.",
    ),
]
Version = Annotated[int, typer.Option(min=0, max=UINT64, help="Only if they still have this version.")]


@rate_limit.command("list")
def list_limits(*, call: Call) -> None:
    """List the limits of all subjects that have some."""
    call.policy(
        "ListRateLimits", policy_pb2.ListRateLimitsRequest(), lambda found: limits_table(found.rate_limits)
    )


@rate_limit.command("subject")
def subject_of(
    issuer: Annotated[str, typer.Argument(help="The claim `iss` of the token.")],
    subject: Annotated[str, typer.Argument(help="The claim `sub` of the token.")],
) -> None:
    """Print the SUBJECT by which the limits of a token's holder are set."""
    sys.stdout.write(f"key:{subject_id(issuer, subject)}\n")


@rate_limit.command()
def get(subject: Subject, *, call: Call) -> None:
    """Show the limits that hold for a subject, and how much of them is used now."""
    call.policy("GetRateLimit", policy_pb2.GetRateLimitRequest(subject=subject), usage_table)


@rate_limit.command("set")
def set_limits(
    subject: Subject,
    requests_per_minute: Annotated[
        int, typer.Option(min=0, max=UINT64, help="In any 60 seconds; 0: no limit.")
    ] = 0,
    tokens_per_minute: Annotated[
        int, typer.Option(min=0, max=UINT64, help="Of prompts and answers; as above.")
    ] = 0,
    requests_per_day: Annotated[
        int, typer.Option(min=0, max=UINT64, help="From midnight to midnight, UTC.")
    ] = 0,
    tokens_per_day: Annotated[int, typer.Option(min=0, max=UINT64, help="As above.")] = 0,
    concurrent: Annotated[
        int, typer.Option(min=0, max=UINT64, help="Requests that run or wait at a time.")
    ] = 0,
    version: Version = 0,
    *,
    call: Call,
) -> None:
    """Set all limits of a subject; what is not named has none. The next call is held to them."""
    limits = policy_pb2.RateLimit(
        subject=subject,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        requests_per_day=requests_per_day,
        tokens_per_day=tokens_per_day,
        concurrent_requests=concurrent,
        version=version,
    )
    call.policy(
        "SetRateLimit",
        policy_pb2.SetRateLimitRequest(rate_limit=limits),
        lambda response: limits_table([response.rate_limit]),
    )


@rate_limit.command()
def delete(subject: Subject, version: Version = 0, *, call: Call) -> None:
    """Remove the limits of a subject: those of its kind hold, if there are any."""

    request = policy_pb2.DeleteRateLimitRequest(subject=subject, version=version)
    call.policy("DeleteRateLimit", request, f"{subject} has no limits of its own any more")


def usage(tenant: Annotated[str, typer.Argument(help="The tenant.")], *, call: Call) -> None:
    """Show how many requests and tokens a tenant has used, with all its keys, since its first request."""
    call.policy("GetUsage", policy_pb2.GetUsageRequest(tenant=tenant), used_table)
