"""`inferctl admin api-keys`: who may call."""

from __future__ import annotations

import re
import sys
import time
from typing import Annotated, Any

import typer
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from inferflux.cli.reach.bounds import UINT64
from inferflux.cli.reach.client import Client
from inferflux.cli.reach.command import Call, make_console, print_json
from inferflux.cli.reach.flag_groups import Commands
from inferflux.cli.show.policy_tables import keys_table
from inferflux.common.contract.callers.scopes import Scope
from inferflux.common.contract.requests.priority import HIGHEST, LOWEST
from inferflux.v1 import policy_pb2

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,10})([smhd])")
# A time after it is one that a message holds.
_MOST_DAYS = 36_500

api_keys = Commands(help="Manage keys: who may call, and what for.", no_args_is_help=True)

KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="As `inferctl admin api-keys list` shows it.")]
Scopes = Annotated[
    list[str] | None,
    typer.Option("--scope", help=f"What for: {', '.join(each.value for each in Scope)}; several times."),
]
Roles = Annotated[
    list[str] | None, typer.Option("--role", help="As `inferctl admin roles list` shows it; several times.")
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="A model it may use, or the beginning of names and *; several times."),
]
Pools = Annotated[
    list[str] | None,
    typer.Option("--worker-pool", help="Only workers of this pool serve it; several times."),
]
MaxPriority = Annotated[
    int | None,
    typer.Option(min=LOWEST, max=HIGHEST, help="The most urgent priority of its requests."),
]
Expires = Annotated[str, typer.Option("--expires", metavar="DURATION", help="Refused after that, e.g. 90d.")]
Version = Annotated[int, typer.Option(min=0, max=UINT64, help="Only if it still has this version.")]
_CACHE_SCOPE = "Whose cached prefixes its requests share, beyond its tenant's."
_SKIP_ANSWER_CACHE = "Its requests leave the answer cache aside."
_DETERMINISTIC = "Its requests get the same answer whatever else is cached or runs, or say otherwise."


@api_keys.command("list")
def list_keys(tenant: Annotated[str, typer.Option(help="Only of this one.")] = "", *, call: Call) -> None:
    """List keys: whose they are and what for, but not the keys themselves."""
    call.policy(
        "ListApiKeys", policy_pb2.ListApiKeysRequest(tenant=tenant), lambda found: keys_table(found.api_keys)
    )


@api_keys.command()
def create(
    tenant: Annotated[str, typer.Argument(help="Whose it is; it is there as soon as a key names it.")],
    name: Annotated[str, typer.Argument(help="What it is for, in your words.")],
    scope: Scopes = None,
    role: Roles = None,
    model: Models = None,
    worker_pool: Pools = None,
    max_priority: MaxPriority = None,
    expires: Expires = "",
    cache_scope: Annotated[str, typer.Option(help=_CACHE_SCOPE)] = "",
    skip_answer_cache: Annotated[bool, typer.Option("--skip-answer-cache", help=_SKIP_ANSWER_CACHE)] = False,
    deterministic: Annotated[bool, typer.Option("--deterministic", help=_DETERMINISTIC)] = False,
    *,
    call: Call,
) -> None:
    """Make a key and show it, this once. Without scopes and roles it has inference and models."""
    request = policy_pb2.CreateApiKeyRequest(
        tenant=tenant,
        name=name,
        scopes=scope if scope or role else ["inference", "models"],
        roles=role,
        models=model,
        worker_pools=worker_pool,
        max_priority=max_priority,
        cache_scope=cache_scope,
        skip_answer_cache=skip_answer_cache,
        deterministic=deterministic,
        expires_at=_in(expires),
    )

    async def run(client: Client) -> None:
        _show_secret(await client.policy("CreateApiKey", request), as_json=call.as_json)

    call.run(run)


@api_keys.command()
def update(
    key_id: KeyId,
    name: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    scope: Scopes = None,
    role: Roles = None,
    model: Models = None,
    worker_pool: Pools = None,
    max_priority: MaxPriority = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="DURATION", help="From now; never: it does not expire.")
    ] = None,
    cache_scope: Annotated[str | None, typer.Option(help=_CACHE_SCOPE)] = None,
    skip_answer_cache: Annotated[
        bool | None, typer.Option("--skip-answer-cache/--use-answer-cache", help=_SKIP_ANSWER_CACHE)
    ] = None,
    deterministic: Annotated[
        bool | None, typer.Option("--deterministic/--no-deterministic", help=_DETERMINISTIC)
    ] = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="FIELD", help="Back to its default, such as models; several times."),
    ] = None,
    version: Version = 0,
    *,
    call: Call,
) -> None:
    """Change a key; its next call follows. What is not named stays."""
    never = expires == "never"
    given: dict[str, Any] = {
        "name": name,
        "scopes": scope,
        "roles": role,
        "models": model,
        "worker_pools": worker_pool,
        "max_priority": max_priority,
        "cache_scope": cache_scope,
        "skip_answer_cache": skip_answer_cache,
        "deterministic": deterministic,
        "expires_at": _in(expires) if expires and not never else None,
    }
    changed = {field: value for field, value in given.items() if value is not None}
    paths = [*changed, *(["expires_at"] if never else []), *(reset or [])]
    request = policy_pb2.UpdateApiKeyRequest(
        api_key=policy_pb2.ApiKey(key_id=key_id, version=version, **changed),
        update_mask=FieldMask(paths=paths),
    )
    call.policy("UpdateApiKey", request, lambda response: keys_table([response.api_key]))


@api_keys.command()
def rotate(
    key_id: KeyId,
    overlap: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the key of now stays valid too; at most 90d.")
    ] = "24h",
    version: Version = 0,
    *,
    call: Call,
) -> None:
    """Give a key a new secret, and show it, this once."""
    request = policy_pb2.RotateApiKeyRequest(
        key_id=key_id, overlap_s=seconds_of(overlap, "--overlap"), version=version
    )

    async def run(client: Client) -> None:
        _show_secret(await client.policy("RotateApiKey", request), as_json=call.as_json)

    call.run(run)


@api_keys.command()
def revoke(key_id: KeyId, version: Version = 0, *, call: Call) -> None:
    """Refuse a key from now on, everywhere."""

    request = policy_pb2.RevokeApiKeyRequest(key_id=key_id, version=version)
    call.policy("RevokeApiKey", request, f"{key_id} is refused from now on")


def seconds_of(text: str, option: str) -> int:
    """Read a duration such as `30s`, `15m`, `24h` or `90d`.

    Raises:
        typer.BadParameter: it is none, or too long; names the option.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{option} is a number and one of s, m, h, d, such as 24h")
    seconds = int(match[1]) * _UNITS[match[2]]
    if seconds > _MOST_DAYS * _UNITS["d"]:
        raise typer.BadParameter(f"{option} is at most {_MOST_DAYS}d")
    return seconds


def _in(duration: str) -> Timestamp | None:
    """The time after a duration from now; None without one."""
    if not duration:
        return None
    at = Timestamp()
    at.FromSeconds(int(time.time()) + seconds_of(duration, "--expires"))
    return at


def _show_secret(
    response: policy_pb2.CreateApiKeyResponse | policy_pb2.RotateApiKeyResponse, *, as_json: bool
) -> None:
    if as_json:
        print_json(response)
        return
    make_console().print(keys_table([response.api_key]))
    sys.stdout.write(f"\n{response.secret}\n\nThis is the key itself. It is shown this once.\n")
