"""`inferctl admin`: what an operator changes while it runs."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import Annotated

import typer

from inferflux.common.contract.models.admin_limits import (
    MAX_HAND_OVER_MS,
    MAX_THRESHOLD,
    MAX_TIMESLICE_TOKENS,
)
from inferflux.v1 import scheduler_pb2

from .ask.draining import begin, follow, goes_on
from .operate.audit_admin import audit
from .operate.cache_admin import cache
from .operate.certs_admin import certs
from .operate.guardrail_admin import guardrails
from .operate.key_admin import api_keys
from .operate.limit_admin import rate_limit, usage
from .operate.nats_user_admin import nats_user
from .operate.policy_transfer import policy
from .operate.role_admin import roles
from .reach.bounds import UINT64
from .reach.client import Client
from .reach.command import ApiKey, Call, Endpoint, StateDirectory, make_console, with_client
from .reach.flag_groups import Commands
from .show.status_tables import fairness_view, moved_view

admin = Commands(
    help="Change fairness, drain workers, move requests, clear caches, "
    "manage keys and access, and read the audit trail.",
    no_args_is_help=True,
)
admin.add_typer(cache, name="cache")
admin.add_typer(api_keys, name="api-keys")
admin.add_typer(roles, name="roles")
admin.add_typer(rate_limit, name="rate-limit")
admin.add_typer(guardrails, name="guardrails")
admin.add_typer(policy, name="policy")
admin.add_typer(audit, name="audit")
admin.command("nats-user")(nats_user)
admin.command("certs")(certs)
admin.command("usage")(usage)

Worker = Annotated[str, typer.Argument(metavar="WORKER", help="As `inferctl status` names it.")]


@admin.command()
def fairness(
    preempt: Annotated[
        bool | None,
        typer.Option("--preempt/--no-preempt", help="Whether urgent requests take the place of others."),
    ] = None,
    high_priority: Annotated[
        int | None,
        typer.Option(
            min=-MAX_THRESHOLD,
            max=MAX_THRESHOLD,
            help="Requests of this priority and above (more urgent) preempt.",
        ),
    ] = None,
    timeslice: Annotated[
        int | None,
        typer.Option(
            min=0, max=MAX_TIMESLICE_TOKENS, help="Others yield after this many tokens; 0 lets them finish."
        ),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Back to the scheduler's environment first.")
    ] = False,
    version: Annotated[
        int, typer.Option(min=0, max=UINT64, help="Only if they still have this version.")
    ] = 0,
    *,
    call: Call,
) -> None:
    """Show what the fairness controller goes by, or change it: at once, and for later schedulers too."""
    change = scheduler_pb2.SetFairness(
        enable_preemption=preempt,
        high_priority_threshold=high_priority,
        max_timeslice_tokens=timeslice,
        reset=reset,
        version=version,
    )

    async def run(client: Client) -> None:
        is_change = change != scheduler_pb2.SetFairness()
        now = await (client.set_fairness(change) if is_change else client.fairness())
        call.show(now, fairness_view)

    call.run(run)


@admin.command()
def drain(
    worker: Worker,
    hand_over_after: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MAX_HAND_OVER_MS // 1000,
            metavar="SECONDS",
            help="Then hand what still runs over to other workers; else it may finish.",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Follow it until the worker may be stopped.")
    ] = True,
    endpoint: Endpoint = "",
    api_key: ApiKey = "",
    state_dir: StateDirectory = None,
) -> None:
    """Give a worker nothing new, and say when it may be stopped."""
    if hand_over_after is not None and math.isnan(hand_over_after):
        raise typer.BadParameter("--hand-over-after is not a number of seconds")
    after_ms = None if hand_over_after is None else round(hand_over_after * 1000)

    async def run(client: Client) -> None:
        updates = client.drain(worker, hand_over_after_ms=after_ms)
        if not wait:
            await begin(updates, worker, make_console())
            return
        try:
            await follow(updates, worker, make_console())
        except asyncio.CancelledError:  # Ctrl-C
            sys.stderr.write(f"{goes_on(worker)}\n")
            raise

    with_client(run, endpoint, api_key, state_dir)


@admin.command()
def undrain(
    worker: Worker, endpoint: Endpoint = "", api_key: ApiKey = "", state_dir: StateDirectory = None
) -> None:
    """Have a drained worker take requests again."""

    async def run(client: Client) -> None:
        await client.undrain(worker)
        sys.stdout.write(f"{worker} takes requests again\n")

    with_client(run, endpoint, api_key, state_dir)


@admin.command()
def move(
    request: Annotated[
        str, typer.Argument(metavar="REQUEST", help="The x-request-id of a request that runs.")
    ],
    worker: Worker,
    tenant: Annotated[
        str, typer.Option(help="Whose request it is, where several tenants have one of that id.")
    ] = "",
    *,
    call: Call,
) -> None:
    """Have another worker go on with a request: its KV state goes there while it runs, then it follows."""

    async def run(client: Client) -> None:
        call.show(await client.move(tenant, request, worker), moved_view)

    call.run(run)
